-- Deliveries by state. Reads the whole table: for people who look, not for loops.
SELECT state, count(*)
FROM pipeline.delivery
GROUP BY state;
