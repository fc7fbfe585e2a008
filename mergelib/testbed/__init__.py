"""Small models, tasks and experts to try methods on."""

from mergelib.testbed import structures as _structures  # registers the models' descriptions

del _structures
