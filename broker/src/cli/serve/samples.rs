//! Looks at a running broker when somebody scrapes it.

use highwater::api::Broker;
use highwater::coordinator::CommittedOffset;
use highwater::metrics::{LagSample, MarksSample, PartitionSample, Samples, TopicSample};
use highwater::storage::{LifeName, PartitionStatus};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The broker, once it has started. Metrics are served before.
#[derive(Clone, Default)]
pub struct Seen(Arc<OnceLock<Arc<Broker>>>);

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seen").field(&self.0.get().is_some()).finish()
    }
}

impl Seen {
    pub fn started(&self, broker: Arc<Broker>) {
        // A process starts one broker.
        let _ = self.0.set(broker);
    }

    /// Whether clients are served; if not, why.
    pub fn ready(&self) -> Result<(), String> {
        let Some(broker) = self.0.get() else { return Err("the broker is starting".to_owned()) };
        if broker.closing.is_said() {
            return Err("the broker is stopping".to_owned());
        }
        if !broker.cluster.ready() {
            return Err("the broker holds no lease".to_owned());
        }
        Ok(())
    }
}

impl Samples for Seen {
    fn partitions(&self) -> Vec<PartitionSample> {
        let Some(broker) = self.0.get() else { return vec![] };
        broker.cluster.engine().statuses().into_iter().map(partition).collect()
    }

    fn topics(&self) -> Vec<TopicSample> {
        let Some(broker) = self.0.get() else { return vec![] };
        let image = broker.cluster.image();
        let topics = image.topics.values();
        topics
            .map(|t| TopicSample { topic: t.name.clone(), flush_messages: t.config.flush_messages })
            .collect()
    }

    fn group_lags(&self) -> Vec<LagSample> {
        let Some(broker) = self.0.get() else { return vec![] };
        let engine = broker.cluster.engine();
        let lag = |committed: CommittedOffset| {
            let hwm = marks(&engine.get(committed.topic_id, committed.partition)?.status())?.hwm;
            Some(LagSample {
                group: committed.group,
                topic: committed.topic,
                partition: committed.partition,
                lag: hwm.saturating_sub(committed.offset).max(0),
            })
        };
        broker.groups.lag_snapshot().into_iter().filter_map(lag).collect()
    }
}

fn partition(status: PartitionStatus) -> PartitionSample {
    PartitionSample {
        partition: status.index,
        leading: status.life == LifeName::Leading,
        marks: marks(&status),
        topic: status.topic,
    }
}

/// What an opened partition knows of itself.
fn marks(status: &PartitionStatus) -> Option<MarksSample> {
    matches!(status.life, LifeName::Leading | LifeName::Stalled).then(|| MarksSample {
        epoch: i64::from(status.epoch.wire()),
        log_start: status.log_start.0,
        hwm: status.hwm.0,
        leo: status.leo.0,
        bytes: i64::try_from(status.bytes).unwrap_or(i64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater::config::BrokerConfig;
    use highwater::metrics::{Exposition, Metrics};
    use highwater::rt::{Env, OsClock, OsEntropy, SoloHost};
    use highwater::server::Node;
    use highwater::volume::{MemVolume, Op};
    use std::time::Duration;

    #[tokio::test]
    async fn a_scrape_is_answered_while_the_volume_hangs() {
        let volume = MemVolume::new();
        let env = Env {
            volume: Arc::new(volume.clone()),
            clock: Arc::new(OsClock),
            entropy: Arc::new(OsEntropy),
            host: Arc::new(SoloHost { name: "test".into(), boot: "boot".into() }),
        };
        let config = BrokerConfig {
            listen: "127.0.0.1:0".into(),
            lease: Duration::from_secs(2),
            ..BrokerConfig::default()
        };
        let metrics = Arc::new(Metrics::default());
        let node = Node::start(env, Arc::new(config), metrics.clone()).await.expect("the broker starts");
        let seen = Seen::default();
        seen.started(node.broker().clone());
        assert_eq!(seen.ready(), Ok(()));
        for op in [Op::Open, Op::Create, Op::Read, Op::Write, Op::Sync, Op::SyncDir, Op::ReadDir] {
            volume.hang(op, "");
        }
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let text = Exposition::new(&metrics, Arc::new(seen.clone())).render();
        assert!(text.contains("highwater_stalled_partitions"), "{text}");
        assert_eq!(seen.ready(), Err("the broker holds no lease".to_owned()));
        volume.heal();
    }
}
