"""Publishing: what a checkpoint row names becomes visible in the tables; `runtime/after_publish` tells others."""
