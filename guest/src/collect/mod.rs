//! Collectors: one file a kernel source. They know nothing of the loop that calls them.
