"""What keeps a region fast: compaction, trimming, garbage, input that is done with."""
