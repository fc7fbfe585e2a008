"""Networks of other sizes, made of trained ones: by fixed maps, learned maps, or fewer units."""
