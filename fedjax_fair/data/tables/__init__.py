"""Tables: reading them, and encoding their columns as features and labels."""
