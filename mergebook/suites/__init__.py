"""Small models, tasks and experts to try methods on."""
