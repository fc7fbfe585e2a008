"""Small models, tasks and experts to try methods on."""

from mergebook.suites import structures as _structures  # registers the models' descriptions

del _structures
