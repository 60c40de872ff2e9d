-- The attempts of a delivery. By primary key.
SELECT
    attempt_number, worker, started_at, finished_at, stage, smtp_code, enhanced_code, reply, error,
    outcome, given_up_at
FROM pipeline.delivery_attempt
WHERE delivery_id = %(id)s
ORDER BY attempt_number;
