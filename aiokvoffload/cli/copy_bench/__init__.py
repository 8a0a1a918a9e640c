"""`aiokvoffload bench copy`: every way of copying in one run, against contiguous copies of the same run."""
