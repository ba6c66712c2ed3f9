"""What tests of several folders share; a test module imports from here, never another one."""
