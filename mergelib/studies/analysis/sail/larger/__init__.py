"""What chapters read out of studies of larger networks."""
