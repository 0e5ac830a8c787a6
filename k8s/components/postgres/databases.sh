# Run once, by the image's entry point, when the volume is empty: a role and a database for each of
# the two that share the server, so that the driver of a sweep, which runs code of users, cannot
# touch MLflow's tables. The entry point sources it, so it sets no options of the shell.
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    --set mlflow_password="${MLFLOW_PASSWORD:?}" --set studies_password="${STUDIES_PASSWORD:?}" <<'SQL'
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE ROLE studies LOGIN PASSWORD :'studies_password';
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE studies OWNER studies;
REVOKE CONNECT ON DATABASE mlflow FROM PUBLIC;
REVOKE CONNECT ON DATABASE studies FROM PUBLIC;
SQL
