//! The tables, the layers over them, and the one line that each mistake earns.

use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn set(pairs: &[(&str, &str)]) -> Layer {
    let mut layer = Layer::default();
    for (key, value) in pairs {
        layer.put(*key, *value, Origin::Set);
    }
    layer
}

fn refusal(pairs: &[(&str, &str)]) -> String {
    let line = BrokerConfig::with(pairs).expect_err("must be refused").to_string();
    assert!(!line.contains('\n'), "more than one line: {line}");
    line
}

fn overrides(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn entry<'a>(entries: &'a [ConfigEntry], name: &str) -> &'a ConfigEntry {
    entries.iter().find(|e| e.name == name).expect(name)
}

#[test]
fn nothing_set_gives_the_compiled_defaults() {
    assert_eq!(BrokerConfig::resolve(vec![]).unwrap(), BrokerConfig::default());
}

#[test]
fn every_default_of_the_tables_is_allowed_and_canonical() {
    for key in BROKER_KEYS.iter().chain(TOPIC_KEYS) {
        if let Some(default) = key.default {
            assert_eq!(key.check(default).as_deref(), Ok(default), "{}", key.name);
        }
        assert!(!key.doc.is_empty() && !key.doc.contains('|'), "{}", key.name);
    }
}

#[test]
fn no_key_stands_in_a_table_twice_and_environment_names_are_unambiguous() {
    for table in [BROKER_KEYS, TOPIC_KEYS] {
        let mut names: Vec<String> = table.iter().map(|k| k.name.replace('.', "_")).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[test]
fn a_topic_key_has_the_default_that_its_broker_keys_have() {
    let described = topic_entries(&BrokerConfig::default(), &BTreeMap::new());
    for (key, entry) in TOPIC_KEYS.iter().zip(&described) {
        assert_eq!(entry.value.as_deref(), key.default, "{}", key.name);
        for (broker_key, _) in key.synonyms {
            assert!(BROKER_KEYS.iter().any(|k| k.name == *broker_key), "{broker_key}");
        }
    }
}

#[test]
fn later_layers_win() {
    let file = Layer::from_toml("b.toml", "num.partitions = 2\n\"log.segment.bytes\" = 2048").unwrap();
    let env = Layer::from_env([("HIGHWATER_NUM_PARTITIONS".to_owned(), "3".to_owned())]).unwrap();
    let config = BrokerConfig::resolve(vec![file.clone(), env.clone()]).unwrap();
    assert_eq!((config.num_partitions, config.topic_defaults.segment_bytes), (3, 2048));
    let config = BrokerConfig::resolve(vec![file, env, set(&[("num.partitions", "4")])]).unwrap();
    assert_eq!((config.num_partitions, config.topic_defaults.segment_bytes), (4, 2048));
}

#[test]
fn toml_keys_may_be_quoted_dotted_or_in_tables() {
    let forms = [
        "\"log.segment.bytes\" = 4096\n\"auto.create.topics.enable\" = false",
        "log.segment.bytes = 4096\nauto.create.topics.enable = false",
        "[log.segment]\nbytes = 4096\n[auto.create]\ntopics = { enable = false }",
    ];
    for text in forms {
        let config = BrokerConfig::resolve(vec![Layer::from_toml("f", text).unwrap()]).unwrap();
        assert_eq!(config.topic_defaults.segment_bytes, 4096, "{text}");
        assert!(!config.auto_create_topics, "{text}");
    }
    let lists = Layer::from_toml("f", "log.cleanup.policy = [\"compact\", \"delete\"]").unwrap();
    let policy = BrokerConfig::resolve(vec![lists]).unwrap().topic_defaults.cleanup_policy;
    assert_eq!(policy, CleanupPolicy { delete: true, compact: true });
}

#[test]
fn a_file_that_sets_a_key_twice_or_is_no_toml_is_refused_with_its_name_and_line() {
    let twice = Layer::from_toml("b.toml", "log.segment.bytes = 2048\n\"log.segment.bytes\" = 1024");
    assert_eq!(twice.unwrap_err().to_string(), "b.toml: log.segment.bytes is set twice");
    let line = Layer::from_toml("b.toml", "num.partitions = 1\nlog.dirs = data\n").unwrap_err().to_string();
    assert!(line.starts_with("b.toml: line 2: "), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

#[test]
fn the_environment_names_keys_by_the_table() {
    let vars = [
        ("HIGHWATER_LOG_SEGMENT_BYTES", "8192"),
        ("HIGHWATER_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
        ("HIGHWATER_CONFIG", "/etc/highwater.toml"),
        ("PATH", "/bin"),
    ];
    let vars = vars.map(|(k, v)| (k.to_owned(), v.to_owned()));
    let config = BrokerConfig::resolve(vec![Layer::from_env(vars).unwrap()]).unwrap();
    assert_eq!(config.topic_defaults.segment_bytes, 8192);
    assert_eq!(config.groups.initial_rebalance_delay, Duration::ZERO);
}

#[test]
fn an_unknown_environment_variable_is_refused_by_its_name() {
    let vars = [("HIGHWATER_LOG_SEGMENT_BYTE".to_owned(), "1".to_owned())];
    let line = BrokerConfig::resolve(vec![Layer::from_env(vars).unwrap()]).unwrap_err().to_string();
    assert_eq!(
        line,
        "unknown configuration key log.segment.byte (from HIGHWATER_LOG_SEGMENT_BYTE); did you mean log.segment.bytes?"
    );
}

#[test]
fn what_kubernetes_sets_for_a_service_called_highwater_is_no_setting() {
    let vars = [
        ("HIGHWATER_SERVICE_HOST", "10.0.0.7"),
        ("HIGHWATER_SERVICE_PORT", "9092"),
        ("HIGHWATER_SERVICE_PORT_KAFKA", "9092"),
        ("HIGHWATER_PORT", "tcp://10.0.0.7:9092"),
        ("HIGHWATER_PORT_9092_TCP", "tcp://10.0.0.7:9092"),
        ("HIGHWATER_PORT_9092_TCP_ADDR", "10.0.0.7"),
        ("HIGHWATER_METRICS_SERVICE_HOST", "10.0.0.8"),
        ("HIGHWATER_METRICS_PORT_9644_TCP_PORT", "9644"),
    ];
    let vars = vars.map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(Layer::from_env(vars).unwrap(), Layer::default());
    // No key of ours looks like one of these.
    for key in BROKER_KEYS {
        let name = format!("HIGHWATER_{}", key.name.replace('.', "_").to_uppercase());
        assert_eq!(Layer::from_env([(name, "1".to_owned())]).unwrap().0.len(), 1, "{}", key.name);
    }
}

#[test]
fn an_unknown_key_suggests_the_nearest() {
    assert_eq!(
        refusal(&[("num.partition", "3")]),
        "unknown configuration key num.partition (from --set); did you mean num.partitions?"
    );
    assert_eq!(
        refusal(&[("retention.ms", "3")]),
        "unknown configuration key retention.ms (from --set); it is a topic's key, whose default is set by log.retention.ms"
    );
    assert!(refusal(&[("zzz", "3")]).ends_with("`highwater config-docs` lists them all"));
}

#[test]
fn a_bad_value_says_key_value_origin_and_what_is_allowed() {
    let cases = [
        ("num.partitions", "many", "num.partitions = \"many\" (from --set): not a whole number"),
        ("num.partitions", "0", "num.partitions = \"0\" (from --set): out of range (1 to 100000)"),
        ("broker.lease.ms", "1999", "broker.lease.ms = \"1999\" (from --set): out of range (2000 to 600000)"),
        (
            "auto.create.topics.enable",
            "yes",
            "auto.create.topics.enable = \"yes\" (from --set): neither true nor false",
        ),
        (
            "log.cleanup.policy",
            "delete,shred",
            "log.cleanup.policy = \"delete,shred\" (from --set): shred is none of delete, compact",
        ),
        (
            "log.retention.hours",
            "0",
            "log.retention.hours = \"0\" (from --set): must be -1 (for ever) or at least 1",
        ),
        ("log.dirs", "/a,/b", "log.dirs = \"/a,/b\" (from --set): one directory only"),
        ("log.dir", "", "log.dir = \"\" (from --set): not a directory"),
    ];
    for (key, value, line) in cases {
        assert_eq!(refusal(&[(key, value)]), line);
    }
    assert!(refusal(&[("compression.type", "zstd")]).contains("never recompressed"));
    assert!(refusal(&[("num.partitions", "99999999999999999999")]).contains("not a whole number"));
}

#[test]
fn an_assignment_without_an_equals_sign_is_refused() {
    let mut layer = Layer::default();
    let line = layer.assign("num.partitions").unwrap_err().to_string();
    assert_eq!(line, "\"num.partitions\" is not of the form key=value");
    assert!(layer.assign("=3").is_err());
    layer.assign("advertised.listeners=PLAINTEXT://a:1").unwrap();
    assert_eq!(layer.0[0].value, "PLAINTEXT://a:1");
}

#[test]
fn retention_and_roll_follow_kafkas_precedence_within_a_layer() {
    let all = set(&[
        ("log.retention.hours", "1"),
        ("log.retention.minutes", "2"),
        ("log.retention.ms", "3"),
        ("log.roll.hours", "1"),
        ("log.roll.ms", "5000"),
    ]);
    let topic = BrokerConfig::resolve(vec![all]).unwrap().topic_defaults;
    assert_eq!(topic.retention_ms, Some(Duration::from_millis(3)));
    assert_eq!(topic.segment_ms, Duration::from_secs(5));
    let two = BrokerConfig::with(&[("log.retention.hours", "1"), ("log.retention.minutes", "2")]).unwrap();
    assert_eq!(two.topic_defaults.retention_ms, Some(Duration::from_secs(120)));
    let forever = BrokerConfig::with(&[("log.retention.hours", "-1")]).unwrap();
    assert_eq!(forever.topic_defaults.retention_ms, None);
}

#[test]
fn between_layers_the_stronger_layer_wins_whatever_unit_it_speaks() {
    let weak = set(&[("log.retention.ms", "3")]);
    let strong = set(&[("log.retention.hours", "1")]);
    let config = BrokerConfig::resolve(vec![weak, strong]).unwrap();
    assert_eq!(config.topic_defaults.retention_ms, Some(Duration::from_secs(3600)));
}

#[test]
fn aliases_set_what_they_stand_for() {
    let config = BrokerConfig::with(&[("node.id", "7"), ("log.dir", "/d")]).unwrap();
    assert_eq!((config.broker_id.0, config.data.to_str()), (7, Some("/d")));
    assert_eq!(refusal(&[("node.id", "7"), ("broker.id", "8")]), "node.id = 7 and broker.id = 8 differ");
    // A flag for one replaces a file's word for the other.
    let config = BrokerConfig::resolve(vec![set(&[("node.id", "7")]), set(&[("broker.id", "8")])]).unwrap();
    assert_eq!(config.broker_id.0, 8);
}

#[test]
fn listeners_come_with_or_without_a_scheme() {
    let listen = |v| BrokerConfig::with(&[("listeners", v)]).map(|c| c.listen);
    assert_eq!(listen("PLAINTEXT://127.0.0.1:19092").unwrap(), "127.0.0.1:19092");
    assert_eq!(listen("localhost:0").unwrap(), "localhost:0");
    assert_eq!(listen("[::1]:9092").unwrap(), "[::1]:9092");
    for bad in ["9092", "a:b", "a:70000", "::1:9092", "SSL://a:1", "a:1,b:2", "[::1:9", "a b:1", ""] {
        assert!(listen(bad).is_err(), "{bad:?}");
    }
    assert!(listen("SSL://a:1").unwrap_err().to_string().contains("SSL is not served, only PLAINTEXT"));
}

#[test]
fn a_listener_on_every_interface_needs_an_advertised_name() {
    for all in ["0.0.0.0:9092", "PLAINTEXT://:9092", "[::]:9092"] {
        assert!(refusal(&[("listeners", all)]).contains("set advertised.listeners"), "{all}");
        let config =
            BrokerConfig::with(&[("listeners", all), ("advertised.listeners", "b1.example:9092")]).unwrap();
        assert_eq!(config.advertised, Some(("b1.example".to_owned(), 9092)));
    }
    assert_eq!(
        BrokerConfig::with(&[("listeners", ":9092"), ("advertised.listeners", "h:1")]).unwrap().listen,
        "0.0.0.0:9092"
    );
    for bad in ["0.0.0.0:9092", "host:0", ":9092"] {
        assert!(refusal(&[("advertised.listeners", bad)]).contains("need a host and a port"), "{bad}");
    }
}

#[test]
fn the_metrics_listener_can_be_off() {
    let with = |v| BrokerConfig::with(&[("metrics.listener", v)]);
    assert_eq!(with("off").unwrap().metrics_listen, None);
    assert_eq!(with("0.0.0.0:9644").unwrap().metrics_listen.as_deref(), Some("0.0.0.0:9644"));
    assert!(with("").is_err() && with("on").is_err());
}

#[test]
fn group_timeouts_must_leave_a_choice() {
    let line = refusal(&[("group.min.session.timeout.ms", "10"), ("group.max.session.timeout.ms", "9")]);
    assert_eq!(line, "group.min.session.timeout.ms is larger than group.max.session.timeout.ms");
}

#[test]
fn requests_in_work_are_bounded_over_all_connections_only_on_demand() {
    let bound = |v| BrokerConfig::with(&[("queued.max.request.bytes", v)]).unwrap().queued_max_request_bytes;
    assert_eq!(BrokerConfig::default().queued_max_request_bytes, None);
    assert_eq!((bound("-1"), bound("1048576")), (None, Some(1 << 20)));
}

#[test]
fn unlimited_numbers_do_not_overflow() {
    let config = BrokerConfig::with(&[
        ("offsets.retention.minutes", "2147483647"),
        ("log.retention.hours", "2147483647"),
        ("log.roll.hours", "2147483647"),
        ("log.flush.interval.ms", "9223372036854775807"),
    ])
    .unwrap();
    assert_eq!(config.groups.offsets_retention, Duration::from_secs(2_147_483_647 * 60));
    assert_eq!(config.topic_defaults.flush_ms, None);
}

#[test]
fn topic_overrides_lie_over_the_brokers_defaults() {
    let broker = BrokerConfig::with(&[("log.segment.bytes", "4096"), ("log.retention.hours", "1")]).unwrap();
    let given = overrides(&[
        ("retention.ms", "-1"),
        ("flush.messages", "100"),
        ("flush.ms", "50"),
        ("cleanup.policy", "compact"),
        ("message.timestamp.type", "logappendtime"),
        ("min.insync.replicas", "2"),
    ]);
    let topic = TopicConfig::resolve(&broker.topic_defaults, &given).unwrap();
    assert_eq!((topic.segment_bytes, topic.retention_ms), (4096, None));
    assert_eq!((topic.flush_messages, topic.flush_ms), (100, Some(Duration::from_millis(50))));
    assert_eq!(topic.cleanup_policy, CleanupPolicy { delete: false, compact: true });
    assert_eq!(topic.timestamp_type, TimestampType::LogAppendTime);
    assert!(!topic.durable());
}

#[test]
fn topic_keys_that_are_not_served_are_refused_with_the_reason() {
    let why = |k, v| validate_topic_key(k, v).unwrap_err().to_string();
    assert_eq!(
        why("compression.type", "zstd"),
        "compression.type = \"zstd\": batches are stored as the producer sent them and never recompressed; only `producer` is served"
    );
    assert_eq!(
        why("remote.storage.enable", "true"),
        "remote.storage.enable = \"true\": tiered storage is not served"
    );
    assert_eq!(
        why("segment.byte", "1"),
        "unknown configuration key segment.byte; did you mean segment.bytes?"
    );
    assert_eq!(
        why("log.segment.bytes", "1"),
        "unknown configuration key log.segment.bytes; it is a broker's key, not a topic's"
    );
    assert!(why("retention.ms", "-2").contains("at least -1"));
    assert!(why("flush.messages", "0").contains("at least 1"));
    assert!(why("min.cleanable.dirty.ratio", "NaN").contains("from 0 to 1"));
    assert!(why("cleanup.policy", "").contains("empty"));
    for (key, value) in
        [("cleanup.policy", "compact, delete"), ("compression.type", "producer"), ("segment.ms", " 5 ")]
    {
        validate_topic_key(key, value).unwrap();
    }
}

#[test]
fn what_describe_shows_for_a_key_is_what_the_typed_value_says() {
    let given =
        overrides(&[("segment.bytes", "2048"), ("cleanup.policy", "compact,delete"), ("flush.ms", "7")]);
    let topic = TopicConfig::resolve(&TopicConfig::default(), &given).unwrap();
    for (key, value) in &given {
        assert_eq!(topic.text(key).as_ref(), Some(value));
    }
}

#[test]
fn describe_names_the_source_of_every_topic_value() {
    let broker =
        BrokerConfig::with(&[("log.retention.minutes", "5"), ("log.segment.bytes", "4096")]).unwrap();
    let entries =
        topic_entries(&broker, &overrides(&[("segment.bytes", "2048"), ("min.insync.replicas", "2")]));
    assert_eq!(entries.len(), TOPIC_KEYS.len());

    let segment = entry(&entries, "segment.bytes");
    assert_eq!((segment.value.as_deref(), segment.source), (Some("2048"), ConfigSource::DynamicTopicConfig));
    let chain: Vec<_> = segment.synonyms.iter().map(|s| (s.name.as_str(), s.value.as_deref())).collect();
    assert_eq!(
        chain,
        [
            ("segment.bytes", Some("2048")),
            ("log.segment.bytes", Some("4096")),
            ("log.segment.bytes", Some("1073741824"))
        ]
    );

    let retention = entry(&entries, "retention.ms");
    assert_eq!(
        (retention.value.as_deref(), retention.source),
        (Some("300000"), ConfigSource::StaticBrokerConfig)
    );
    assert_eq!(retention.synonyms[0].name, "log.retention.minutes");

    let index = entry(&entries, "index.interval.bytes");
    assert_eq!((index.value.as_deref(), index.source), (Some("4096"), ConfigSource::DefaultConfig));
    let isr = entry(&entries, "min.insync.replicas");
    assert_eq!((isr.value.as_deref(), isr.source), (Some("2"), ConfigSource::DynamicTopicConfig));
}

#[test]
fn describe_says_which_durability_promise_holds() {
    let broker = BrokerConfig::default();
    let doc = |given: &[(&str, &str)]| {
        entry(&topic_entries(&broker, &overrides(given)), "flush.messages").documentation.clone()
    };
    assert!(doc(&[]).ends_with("Now: every acknowledged batch is fsynced."));
    let dialled = doc(&[("flush.messages", "100"), ("flush.ms", "50")]);
    assert!(dialled.contains("Now: fsynced every 100 records or 50 ms:"), "{dialled}");
    let broker = BrokerConfig::with(&[("log.flush.interval.messages", "9")]).unwrap();
    let entries = broker_entries(&broker);
    let dial = entry(&entries, "log.flush.interval.messages");
    assert!(dial.documentation.contains("Now: fsynced every 9 records:"), "{}", dial.documentation);
}

#[test]
fn describe_shows_every_broker_key_and_what_the_machine_gave_as_a_default() {
    let mut host = Layer::default();
    host.put("max.connections", "512", Origin::Host);
    let config = BrokerConfig::resolve(vec![host, set(&[("broker.id", "4")])]).unwrap();
    let entries = broker_entries(&config);
    assert_eq!(entries.len(), BROKER_KEYS.len());
    assert!(entries.iter().all(|e| e.read_only && !e.is_sensitive));
    let max = entry(&entries, "max.connections");
    assert_eq!((max.value.as_deref(), max.source), (Some("512"), ConfigSource::DefaultConfig));
    let id = entry(&entries, "broker.id");
    assert_eq!((id.value.as_deref(), id.source), (Some("4"), ConfigSource::StaticBrokerConfig));
    assert_eq!(entry(&entries, "log.retention.ms").value, None);
}

#[test]
#[allow(clippy::disallowed_methods)] // reads the repository, not a volume
fn the_readmes_tables_are_these() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(path).expect("README.md");
    let (_, rest) =
        readme.split_once("<!-- config:begin -->").expect("README.md lacks <!-- config:begin -->");
    let (tables, _) = rest.split_once("<!-- config:end -->").expect("README.md lacks <!-- config:end -->");
    assert_eq!(
        tables.trim(),
        markdown().trim(),
        "paste the output of `highwater config-docs` between the markers"
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(key in "\\PC{0,40}", value in "\\PC{0,40}") {
        let _ = Layer::from_toml("f", &format!("{key}={value}"));
        let _ = validate_topic_key(&key, &value);
        for row in BROKER_KEYS.iter().chain(TOPIC_KEYS) {
            if let Ok(canonical) = row.check(&value) {
                proptest::prop_assert_eq!(row.check(&canonical), Ok(canonical.clone()));
            }
        }
        for name in ["listeners", "advertised.listeners", "log.dirs", "metrics.listener"] {
            let _ = BrokerConfig::with(&[(name, &value)]);
        }
    }
}
