"""Code shared by test modules, which import from here and not from each other."""
