"""Programs around the library: exact worlds, exports made from them, measurements."""
