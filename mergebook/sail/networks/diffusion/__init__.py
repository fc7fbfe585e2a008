"""Small flow models that draw pictures: an autoencoder, a transformer on its latents, a judge."""
