"""The paper's Table 2 and its sensitivity studies: run them, and write them into the docs."""
