"""Maps from the weights of one network to those of a larger or smaller one."""
