"""What is looked at in models before and while they are merged, and what users are told of it."""
