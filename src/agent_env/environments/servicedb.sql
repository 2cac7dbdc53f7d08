-- What an environment's database has beside the schemas of its servers: a log of every change, which the gateway reads and no server can
-- write past. A change's id is given under one lock that is held until its transaction ends, so that whoever has read up to an id has
-- missed nothing below it.

CREATE SCHEMA agent_env_internal;
REVOKE ALL ON SCHEMA agent_env_internal FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

CREATE SEQUENCE agent_env_internal.changelog_id;

CREATE TABLE agent_env_internal.watched (schema_name text PRIMARY KEY);

CREATE TABLE public._changelog (
    id bigint PRIMARY KEY,
    timestamp timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_name text NOT NULL,
    table_name text NOT NULL,
    operation text NOT NULL,
    row_id text,
    summary text NOT NULL,
    changed_fields jsonb NOT NULL
);
REVOKE ALL ON public._changelog FROM PUBLIC;

-- Arguments: the names of the columns that tell rows apart.
CREATE FUNCTION agent_env_internal.log_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    new_row jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE to_jsonb(NEW) END;
    old_row jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE to_jsonb(OLD) END;
    present jsonb := coalesce(new_row, old_row);
    changed jsonb := present;
    named text;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        SELECT coalesce(jsonb_object_agg(n.key, jsonb_build_object('old', old_row -> n.key, 'new', n.value)), '{}')
            INTO changed FROM jsonb_each(new_row) AS n WHERE n.value IS DISTINCT FROM old_row -> n.key;
        IF changed = '{}' THEN
            RETURN NULL;
        END IF;
    END IF;
    IF TG_NARGS = 1 THEN
        named := present ->> TG_ARGV[0];
    ELSIF TG_NARGS > 1 THEN
        SELECT jsonb_object_agg(k, present -> k)::text INTO named FROM unnest(TG_ARGV) AS k;
    END IF;
    PERFORM pg_advisory_xact_lock(4702111234474983745);
    INSERT INTO public._changelog (id, schema_name, table_name, operation, row_id, summary, changed_fields)
        VALUES (nextval('agent_env_internal.changelog_id'), TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP, named,
                format('%s %s.%s%s', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, coalesce(' ' || named, '')), changed);
    RETURN NULL;
END $$;

CREATE FUNCTION agent_env_internal.watch_table(target regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    columns text[];
BEGIN
    SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum)) INTO columns
        FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = target AND i.indisprimary;
    IF columns IS NULL THEN
        SELECT array_agg(a.attname::text) INTO columns
            FROM pg_attribute a WHERE a.attrelid = target AND a.attname = 'id' AND NOT a.attisdropped;
    END IF;
    EXECUTE format('DROP TRIGGER IF EXISTS agent_env_changelog ON %s', target);
    EXECUTE format('CREATE TRIGGER agent_env_changelog AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION agent_env_internal.log_change(%s)',
                   target, (SELECT coalesce(string_agg(quote_literal(c), ', '), '') FROM unnest(columns) AS c));
END $$;

-- After a load: what was loaded is the beginning, and no change.
CREATE FUNCTION agent_env_internal.install_changelog(target text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    found regclass;
BEGIN
    INSERT INTO agent_env_internal.watched VALUES (target) ON CONFLICT DO NOTHING;
    FOR found IN SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = target AND c.relkind = 'r' LOOP
        PERFORM agent_env_internal.watch_table(found);
    END LOOP;
    DELETE FROM public._changelog WHERE schema_name = target;
END $$;

-- Tables that a server makes later are watched from their first row.
CREATE FUNCTION agent_env_internal.on_definition() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    made record;
BEGIN
    FOR made IN SELECT c.objid FROM pg_event_trigger_ddl_commands() AS c
        JOIN agent_env_internal.watched w ON w.schema_name = c.schema_name
        JOIN pg_class k ON k.oid = c.objid AND k.relkind = 'r'
        WHERE c.object_type = 'table' AND c.classid = 'pg_class'::regclass LOOP
        PERFORM agent_env_internal.watch_table(made.objid::regclass);
    END LOOP;
END $$;

CREATE EVENT TRIGGER agent_env_definition ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
    EXECUTE FUNCTION agent_env_internal.on_definition();
