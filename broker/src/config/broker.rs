//! A broker's configuration, as typed values.
//!
//! [`BrokerConfig::resolve`] is the one way from text to it: defaults, file, environment, `--set`, flags,
//! in rising strength. It reads nothing itself and either gives a configuration that is whole and
//! consistent, or one line that says what is wrong.

use super::address;
use super::broker_keys::{BROKER_KEYS, FAMILIES};
use super::error::ConfigError;
use super::key::find;
use super::layer::{merge, Layer, SetValues};
use super::{StorageConfig, TopicConfig};
use crate::types::BrokerId;
use std::time::Duration;

/// A broker's configuration, resolved and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// `broker.id` (alias `node.id`)
    pub broker_id: BrokerId,
    /// `listeners`: host and port, port 0 for any
    pub listen: String,
    /// `advertised.listeners`; `None`: as bound
    pub advertised: Option<(String, u16)>,
    /// `log.dirs`: exactly one directory
    pub data: std::path::PathBuf,
    /// `cluster.dir`; `None`: the control plane's files lie in `data`
    pub cluster_dir: Option<std::path::PathBuf>,
    /// `metrics.listener`; `None` is off
    pub metrics_listen: Option<String>,
    /// `num.partitions`
    pub num_partitions: i32,
    /// `max.partitions.per.request`
    pub max_partitions_per_request: i32,
    /// `max.partitions`: in the cluster
    pub max_partitions: i32,
    /// `auto.create.topics.enable`
    pub auto_create_topics: bool,
    /// `socket.request.max.bytes`
    pub socket_request_max_bytes: usize,
    /// `max.connections`
    pub max_connections: usize,
    /// `connections.max.idle.ms`
    pub connections_max_idle: Duration,
    /// `queued.max.request.bytes`: requests in work over all connections; `None` is unbounded
    pub queued_max_request_bytes: Option<usize>,
    /// `fetch.max.bytes`
    pub fetch_max_bytes: usize,
    /// `broker.lease.ms`
    pub lease: Duration,
    /// Topic defaults as the broker's `log.*` keys give them
    pub topic_defaults: TopicConfig,
    pub storage: StorageConfig,
    pub groups: GroupConfig,
    pub transactions: TransactionConfig,
    /// What was set, by key, and by whom: for DescribeConfigs
    pub set: SetValues,
}

/// Transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionConfig {
    /// `transaction.max.timeout.ms`
    pub max_timeout: Duration,
    /// `transactional.id.expiration.ms`
    pub id_expiration: Duration,
}

impl Default for TransactionConfig {
    fn default() -> Self {
        TransactionConfig {
            max_timeout: Duration::from_secs(900),
            id_expiration: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// Consumer groups and their offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.min.session.timeout.ms`
    pub min_session_timeout: Duration,
    /// `group.max.session.timeout.ms`
    pub max_session_timeout: Duration,
    /// `group.initial.rebalance.delay.ms`
    pub initial_rebalance_delay: Duration,
    /// `group.max.size`, in members
    pub max_size: usize,
    /// `group.consumer.session.timeout.ms` (KIP-848)
    pub consumer_session_timeout: Duration,
    /// `group.consumer.heartbeat.interval.ms`
    pub consumer_heartbeat_interval: Duration,
    /// `group.consumer.max.size`, in members
    pub consumer_max_size: usize,
    /// `group.consumer.assignors`, the first being the default
    pub consumer_assignors: Vec<String>,
    /// `offsets.retention.minutes`
    pub offsets_retention: Duration,
    /// `offsets.retention.check.interval.ms`
    pub offsets_retention_check: Duration,
    /// `offset.metadata.max.bytes`
    pub offset_metadata_max_bytes: usize,
}

impl Default for GroupConfig {
    fn default() -> Self {
        GroupConfig {
            min_session_timeout: Duration::from_secs(6),
            max_session_timeout: Duration::from_secs(1800),
            initial_rebalance_delay: Duration::from_secs(3),
            max_size: i32::MAX as usize,
            consumer_session_timeout: Duration::from_secs(45),
            consumer_heartbeat_interval: Duration::from_secs(5),
            consumer_max_size: i32::MAX as usize,
            consumer_assignors: vec!["uniform".to_owned(), "range".to_owned()],
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            offsets_retention_check: Duration::from_secs(600),
            offset_metadata_max_bytes: 4096,
        }
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        BrokerConfig {
            broker_id: BrokerId(1),
            listen: "127.0.0.1:9092".to_owned(),
            advertised: None,
            data: "data".into(),
            cluster_dir: None,
            metrics_listen: Some("127.0.0.1:9644".to_owned()),
            num_partitions: 1,
            max_partitions_per_request: 10_000,
            max_partitions: 100_000,
            auto_create_topics: true,
            socket_request_max_bytes: 100 << 20,
            max_connections: i32::MAX as usize,
            connections_max_idle: Duration::from_secs(600),
            queued_max_request_bytes: None,
            fetch_max_bytes: 55 << 20,
            lease: Duration::from_secs(10),
            topic_defaults: TopicConfig::default(),
            storage: StorageConfig::default(),
            groups: GroupConfig::default(),
            transactions: TransactionConfig::default(),
            set: SetValues::new(),
        }
    }
}

impl BrokerConfig {
    /// Lays `layers` over the compiled defaults, the last the strongest, and checks the whole.
    ///
    /// Keys of one family (`log.retention.hours`, `.minutes`, `.ms`) count as one setting between layers:
    /// a stronger layer's `hours` replaces a weaker one's `ms`. Within a layer Kafka's order holds.
    pub fn resolve(layers: Vec<Layer>) -> Result<BrokerConfig, ConfigError> {
        let set = merge(layers)?;
        let get = Values(&set);
        let listen = get.address("listeners")?.unwrap_or_default();
        let advertised = get.address("advertised.listeners")?;
        if let Some((host, port)) = &advertised {
            if address::is_wildcard(host) || *port == 0 {
                return Err(get.bad("advertised.listeners", "clients need a host and a port to connect to"));
            }
        } else if address::is_wildcard(&listen.0) {
            return Err(get.bad(
                "listeners",
                "binds every interface: set advertised.listeners to the host:port that clients are to use",
            ));
        }
        let config = BrokerConfig {
            broker_id: get.broker_id()?,
            listen: address::join(&listen.0, listen.1),
            advertised,
            data: get.data_dir()?,
            cluster_dir: get.cluster_dir()?,
            metrics_listen: get.metrics_listener()?,
            num_partitions: get.int("num.partitions"),
            max_partitions_per_request: get.int("max.partitions.per.request"),
            max_partitions: get.int("max.partitions"),
            auto_create_topics: get.text("auto.create.topics.enable") == Some("true"),
            socket_request_max_bytes: get.size("socket.request.max.bytes"),
            max_connections: match get.text("max.connections") {
                Some(_) => get.size("max.connections"),
                None => i32::MAX as usize,
            },
            connections_max_idle: get.millis("connections.max.idle.ms"),
            queued_max_request_bytes: usize::try_from(get.long("queued.max.request.bytes")).ok(),
            fetch_max_bytes: get.size("fetch.max.bytes"),
            lease: get.millis("broker.lease.ms"),
            topic_defaults: TopicConfig::defaults_of(&set)?,
            storage: get.storage(),
            groups: get.groups(),
            transactions: TransactionConfig {
                max_timeout: get.millis("transaction.max.timeout.ms"),
                id_expiration: get.millis("transactional.id.expiration.ms"),
            },
            set: SetValues::new(),
        };
        if config.groups.min_session_timeout > config.groups.max_session_timeout {
            return Err(ConfigError::Conflict(
                "group.min.session.timeout.ms is larger than group.max.session.timeout.ms".to_owned(),
            ));
        }
        get.check_consumer_groups()?;
        Ok(BrokerConfig { set, ..config })
    }

    /// Resolves a few settings over the defaults: for tests and tools.
    pub fn with(pairs: &[(&str, &str)]) -> Result<BrokerConfig, ConfigError> {
        let mut layer = Layer::default();
        for (key, value) in pairs {
            layer.put(*key, *value, super::layer::Origin::Set);
        }
        BrokerConfig::resolve(vec![layer])
    }
}

/// Checked values by key, over the table's defaults.
struct Values<'a>(&'a SetValues);

impl Values<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        let family = FAMILIES.iter().find(|f| f.contains(&key));
        let set = match family {
            Some(family) => family.iter().find_map(|k| self.0.get(k)),
            None => self.0.get(key),
        };
        set.map(|s| s.value.as_str()).or_else(|| find(BROKER_KEYS, key).and_then(|k| k.default))
    }

    /// A number of the table. Every value here was checked against its row, and a test parses the defaults.
    fn long(&self, key: &str) -> i64 {
        self.text(key).and_then(|t| t.parse().ok()).unwrap_or_default()
    }

    fn int(&self, key: &str) -> i32 {
        i32::try_from(self.long(key)).unwrap_or(i32::MAX)
    }

    fn size(&self, key: &str) -> usize {
        usize::try_from(self.long(key)).unwrap_or_default()
    }

    fn bytes(&self, key: &str) -> u64 {
        u64::try_from(self.long(key)).unwrap_or_default()
    }

    fn millis(&self, key: &str) -> Duration {
        Duration::from_millis(self.bytes(key))
    }

    fn words(&self, key: &str) -> Vec<String> {
        self.text(key).unwrap_or_default().split(',').map(str::to_owned).collect()
    }

    /// A value that other keys bound, in Kafka's words: for what groups may set for themselves.
    fn within(&self, key: &str, min: &str, max: &str) -> Result<(), ConfigError> {
        let [value, low, high] = [key, min, max].map(|k| self.long(k));
        match () {
            () if value < low => Err(ConfigError::Conflict(format!("{key} is smaller than {min}"))),
            () if value > high => Err(ConfigError::Conflict(format!("{key} is larger than {max}"))),
            () => Ok(()),
        }
    }

    fn check_consumer_groups(&self) -> Result<(), ConfigError> {
        let [session, heartbeat] = ["session.timeout.ms", "heartbeat.interval.ms"].map(|name| {
            let key = format!("group.consumer.{name}");
            let [min, max] = ["min", "max"].map(|bound| format!("group.consumer.{bound}.{name}"));
            self.within(&key, &min, &max).map(|()| self.long(&key))
        });
        match heartbeat? < session? {
            true => Ok(()),
            false => Err(ConfigError::Conflict(
                "group.consumer.heartbeat.interval.ms is not smaller than group.consumer.session.timeout.ms"
                    .to_owned(),
            )),
        }
    }

    fn bad(&self, key: &str, reason: &str) -> ConfigError {
        let error = ConfigError::bad(key, self.text(key).unwrap_or_default(), reason);
        self.0.get(key).map_or(error.clone(), |s| error.at(&s.origin))
    }

    fn address(&self, key: &str) -> Result<Option<(String, u16)>, ConfigError> {
        let Some(text) = self.text(key).filter(|t| !t.is_empty()) else { return Ok(None) };
        address::parse(text).map(Some).map_err(|why| self.bad(key, &why))
    }

    fn broker_id(&self) -> Result<BrokerId, ConfigError> {
        if let (Some(node), Some(broker)) = (self.0.get("node.id"), self.0.get("broker.id")) {
            if node.value != broker.value {
                return Err(ConfigError::Conflict(format!(
                    "node.id = {} and broker.id = {} differ",
                    node.value, broker.value
                )));
            }
        }
        Ok(BrokerId(i32::try_from(self.long("broker.id")).unwrap_or_default()))
    }

    fn data_dir(&self) -> Result<std::path::PathBuf, ConfigError> {
        let key = if self.0.contains_key("log.dirs") { "log.dirs" } else { "log.dir" };
        match self.text("log.dirs") {
            Some(dir) if dir.contains(',') => Err(self.bad(key, "one directory only")),
            Some(dir) if !dir.is_empty() && !dir.contains('\0') => Ok(dir.into()),
            _ => Err(self.bad(key, "not a directory")),
        }
    }

    fn cluster_dir(&self) -> Result<Option<std::path::PathBuf>, ConfigError> {
        match self.text("cluster.dir") {
            Some(dir) if dir.is_empty() || dir.contains('\0') => {
                Err(self.bad("cluster.dir", "not a directory"))
            }
            dir => Ok(dir.map(Into::into)),
        }
    }

    fn metrics_listener(&self) -> Result<Option<String>, ConfigError> {
        let key = "metrics.listener";
        if self.text(key).is_some_and(|t| t.eq_ignore_ascii_case("off")) {
            return Ok(None);
        }
        match self.address(key)? {
            Some((host, port)) => Ok(Some(address::join(&host, port))),
            None => Err(self.bad(key, "neither host:port nor off")),
        }
    }

    fn storage(&self) -> StorageConfig {
        StorageConfig {
            sync_timeout: self.millis("storage.sync.timeout.ms"),
            group_bytes: self.bytes("storage.group.bytes"),
            checkpoint_bytes: self.bytes("storage.checkpoint.bytes"),
            queue_bytes: self.bytes("storage.queue.bytes"),
            max_open_files: match self.text("storage.max.open.files") {
                Some(_) => self.size("storage.max.open.files"),
                None => StorageConfig::default().max_open_files,
            },
            retention_check: self.millis("log.retention.check.interval.ms"),
            producer_expiry: self.millis("producer.id.expiration.ms"),
        }
    }

    fn groups(&self) -> GroupConfig {
        GroupConfig {
            min_session_timeout: self.millis("group.min.session.timeout.ms"),
            max_session_timeout: self.millis("group.max.session.timeout.ms"),
            initial_rebalance_delay: self.millis("group.initial.rebalance.delay.ms"),
            max_size: self.size("group.max.size"),
            consumer_session_timeout: self.millis("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval: self.millis("group.consumer.heartbeat.interval.ms"),
            consumer_max_size: self.size("group.consumer.max.size"),
            consumer_assignors: self.words("group.consumer.assignors"),
            offsets_retention: self.millis("offsets.retention.minutes").saturating_mul(60_000),
            offsets_retention_check: self.millis("offsets.retention.check.interval.ms"),
            offset_metadata_max_bytes: self.size("offset.metadata.max.bytes"),
        }
    }
}
