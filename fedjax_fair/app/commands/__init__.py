"""Commands of ``fedjax-fair``: frozen dataclasses whose fields are the options."""
