"""The claims of the stability framework (Li et al., 2026), a module for each kind of study."""
