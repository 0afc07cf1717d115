"""Legacy pickles: streamed into tables of columns without importing anything, and mapped to roles."""
