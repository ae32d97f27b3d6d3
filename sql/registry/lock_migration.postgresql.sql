-- One process migrates at a time; SQLite has its write lock.
SELECT pg_advisory_xact_lock(hashtext('drainmark'))
