#!/usr/bin/env bash
# Make the secrets of compose.yaml in a folder that is not there yet: ./make_secrets.sh FOLDER
# Their files can be read by all users, since those in the containers differ; their folder is for its owner alone.
set -euo pipefail
umask 077
mkdir "$1"
cd "$1"
made() { python3 -c 'import secrets; print(secrets.token_hex(24))'; }
postgres=$(made) ours=$(made) admin=$(made)
printf %s "$postgres" >postgres_password
printf %s "postgresql+psycopg://drainmark:$postgres@postgres:5432/drainmark" >registry_url
profile() { printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$1" "$2"; }
profile drainmark "$ours" >aws
profile admin "$admin" >aws_admin
cat >s3.json <<JSON
{"identities": [
  {"name": "drainmark", "credentials": [{"accessKey": "drainmark", "secretKey": "$ours"}],
   "actions": ["Read:lake", "Write:lake", "List:lake", "Tagging:lake"]},
  {"name": "admin", "credentials": [{"accessKey": "admin", "secretKey": "$admin"}], "actions": ["Admin"]}
]}
JSON
chmod 644 ./*
