-- What the present user may not do and has to: table by table.
SELECT wanted.name, array_agg(privilege ORDER BY privilege)
FROM unnest(%(tables)s::text[], %(read_only)s::boolean[]) AS wanted (name, is_read_only)
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
WHERE to_regclass(wanted.name) IS NOT NULL
    AND (privilege = 'SELECT' OR NOT wanted.is_read_only)
    AND NOT has_table_privilege(wanted.name, privilege)
GROUP BY wanted.name
ORDER BY wanted.name;
