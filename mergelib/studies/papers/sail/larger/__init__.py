"""Studies of larger networks that begin with what smaller ones have learned."""
