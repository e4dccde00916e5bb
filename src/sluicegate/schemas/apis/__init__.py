"""Tools in the shapes of model APIs: one module for each API; `rules` translates input schemas. Pure."""
