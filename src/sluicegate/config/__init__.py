"""Configuration: reads the files, returns frozen values and reports every problem in them."""
