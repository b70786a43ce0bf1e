"""Run and compare: configuration, presets, run folders."""
