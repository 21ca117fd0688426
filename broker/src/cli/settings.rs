//! From command line, environment and file to a configuration.

use clap::Args;
use highwater::config::{BrokerConfig, ConfigError, Layer, Origin};
use std::path::PathBuf;

/// The most segment files that a machine's limit alone makes a broker hold open.
const MAX_OPEN_FILES: u64 = 8192;

/// The flags of `serve`. Their values are checked where all others are.
#[derive(Debug, Args)]
pub struct Flags {
    /// Configuration file (TOML), with Kafka's names for keys
    #[arg(long, value_name = "FILE", env = "HIGHWATER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory of the data, created if it is missing (log.dirs)
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Directory of the control plane's files, where they are not to lie in the data directory (cluster.dir)
    #[arg(long, value_name = "DIR")]
    pub cluster_dir: Option<String>,
    /// Where to listen for clients, as host:port (listeners)
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// This broker's id (broker.id)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub broker_id: Option<String>,
    /// Sets one configuration key; may be given more than once
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl Flags {
    /// The configuration: what the machine allows, the file, the environment, `--set`, flags, in rising strength.
    ///
    /// `fd_limit` is how many files this process may have open.
    pub fn resolve(
        &self,
        env: impl IntoIterator<Item = (String, String)>,
        fd_limit: u64,
    ) -> Result<BrokerConfig, ConfigError> {
        let mut layers = vec![host(fd_limit)];
        if let Some(path) = &self.config {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|e| ConfigError::File { path: shown.clone(), reason: e.to_string() })?;
            layers.push(Layer::from_toml(&shown, &text)?);
        }
        layers.push(Layer::from_env(env)?);
        let mut set = Layer::default();
        for given in &self.set {
            set.assign(given)?;
        }
        layers.push(set);
        layers.push(self.own());
        BrokerConfig::resolve(layers)
    }

    fn own(&self) -> Layer {
        let mut layer = Layer::default();
        let flags = [
            ("log.dirs", "--data", &self.data),
            ("cluster.dir", "--cluster-dir", &self.cluster_dir),
            ("listeners", "--listen", &self.listen),
            ("broker.id", "--broker-id", &self.broker_id),
        ];
        for (key, flag, value) in flags {
            if let Some(value) = value {
                layer.put(key, value, Origin::Flag(flag));
            }
        }
        layer
    }
}

/// This process's environment, as far as it is text: other variables cannot be ours.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
}

/// What the limit of open files makes sensible: half for connections, a quarter for segments, the rest for everything else.
fn host(fd_limit: u64) -> Layer {
    let mut layer = Layer::default();
    let connections = (fd_limit / 2).clamp(1, i32::MAX as u64);
    let files = (fd_limit / 4).clamp(16, MAX_OPEN_FILES);
    layer.put("max.connections", connections.to_string(), Origin::Host);
    layer.put("storage.max.open.files", files.to_string(), Origin::Host);
    layer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Flags {
        Flags { config: None, data: None, cluster_dir: None, listen: None, broker_id: None, set: vec![] }
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_limit_of_open_files_is_shared_out() {
        let small = flags().resolve([], 1024).unwrap();
        assert_eq!((small.storage.max_open_files, small.max_connections), (256, 512));
        let large = flags().resolve([], u64::MAX).unwrap();
        assert_eq!((large.storage.max_open_files, large.max_connections), (8192, i32::MAX as usize));
        let chosen = Flags { set: vec!["max.connections=7".into()], ..flags() }.resolve([], 1024).unwrap();
        assert_eq!((chosen.storage.max_open_files, chosen.max_connections), (256, 7));
    }

    #[test]
    fn each_layer_is_stronger_than_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.toml");
        std::fs::write(
            &path,
            "broker.id = 2\nnum.partitions = 2\nlog.dirs = \"/file\"\ngroup.max.size = 2\n",
        )
        .unwrap();
        let from_env =
            [("HIGHWATER_BROKER_ID", "3"), ("HIGHWATER_NUM_PARTITIONS", "3"), ("HIGHWATER_LOG_DIRS", "/env")];
        let given = Flags {
            config: Some(path),
            data: Some("/flag".into()),
            set: vec!["broker.id=4".into(), "log.dir=/set".into()],
            ..flags()
        };
        let config = given.resolve(env(&from_env), 1024).unwrap();
        assert_eq!(config.groups.max_size, 2, "the file, which nothing contradicts");
        assert_eq!(config.num_partitions, 3, "the environment over the file");
        assert_eq!(config.broker_id.0, 4, "--set over the environment");
        assert_eq!(config.data.to_str(), Some("/flag"), "a flag over --set");
    }

    #[test]
    fn a_flags_bad_value_names_the_flag() {
        let line = |f: Flags| f.resolve([], 1024).unwrap_err().to_string();
        assert_eq!(
            line(Flags { broker_id: Some("one".into()), ..flags() }),
            "broker.id = \"one\" (from --broker-id): not a whole number"
        );
        assert_eq!(
            line(Flags { listen: Some("9092".into()), ..flags() }),
            "listeners = \"9092\" (from --listen): neither host:port nor PLAINTEXT://host:port"
        );
        assert_eq!(line(Flags { set: vec!["x".into()], ..flags() }), "\"x\" is not of the form key=value");
    }

    #[test]
    fn a_missing_file_is_named() {
        let line = Flags { config: Some("/no/such.toml".into()), ..flags() }.resolve([], 1024).unwrap_err();
        assert_eq!(line.to_string(), "/no/such.toml: No such file or directory (os error 2)");
    }
}
