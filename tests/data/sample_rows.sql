-- A real tracker's rows as psql writes them: \copy reads the lines, SQL takes them apart.
-- psql -v which='state|priority' writes only the rows whose label matches; -v lines names the file.
\if :{?which}
\else
\set which '.*'
\endif
BEGIN;
CREATE TEMPORARY TABLE line (sample jsonb) ON COMMIT DROP;
-- Whole lines: a quote and a delimiter that no JSON text holds.
\set copy '\\copy line FROM ' :'lines' ' WITH (FORMAT csv, QUOTE E''\\x01'', DELIMITER E''\\x02'')'
:copy
INSERT INTO pipeline.email_notification_log
    (id, receiver_id, triggered_by_id, entity_name, entity_identifier, data, created_at)
SELECT
    (sample ->> 'id')::uuid,
    sample ->> 'receiver_id',
    sample ->> 'triggered_by_id',
    sample ->> 'entity_name',
    sample ->> 'entity_identifier',
    sample -> 'data',
    (sample ->> 'created_at')::timestamptz
FROM line
WHERE sample ->> 'label' ~ ('^(' || :'which' || ')$');
COMMIT;
