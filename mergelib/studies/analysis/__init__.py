"""What chapters show of the studies: tables read from records, and small computations."""
