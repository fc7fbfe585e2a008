"""The studies themselves, by paper: functions of a zoo that return tables."""
