#!/usr/bin/env bash
# What a container of the image runs: `services`, Dagster's daemon with its web page; `executor`, as Spark calls it on
# Kubernetes; or any other command.
set -euo pipefail

case "${1:-services}" in
services)
  dagster-daemon run -w "$WORKSPACE" &
  # Dagster's web server behind Drainmark's guard; the options are those of dagster-webserver.
  python -m drainmark.orchestration.dagster_page.web_server -w "$WORKSPACE" -h 0.0.0.0 -p "$PORT" &
  both=$(jobs -p)
  trap 'kill $both 2>/dev/null || true' TERM INT
  wait -n && status=$? || status=$?
  # One without the other is no service: the container ends, and is started again as a whole.
  kill $both 2>/dev/null || true
  wait || true
  exit "$((status ? status : 1))"
  ;;
executor)
  eval "options=($(python -c 'from pathlib import Path; from drainmark.resources.spark.unnamed_user import java_options
print(java_options(Path("/tmp/java")))'))"
  for ((i = 0; ; i++)); do
    name=SPARK_JAVA_OPT_$i
    [[ -v $name ]] || break
    options+=("${!name}")
  done
  jars=$(python -c 'import pyspark; print(pyspark.__path__[0])')/jars
  exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-}:${SPARK_CLASSPATH:-}:$jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
*)
  exec "$@"
  ;;
esac
