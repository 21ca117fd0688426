//! The world of the exercise: one broker on a local file system, and one producer.

use super::front::{Command, Front, KEYS};
use super::picture;
use crate::client::records::{batch, Identity};
use crate::client::{topic_name, version, Client, Target};
use crate::view::strip::Track;
use crate::view::Collector;
use crate::volume::{Kind, Model, Options, Span};
use bytes::Bytes;
use highwater::config::BrokerConfig;
use highwater::metrics::Metrics;
use highwater::rt::{Entropy, Env, OsClock, SeededEntropy, SoloHost};
use highwater::server::Node;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    CreateTopicsRequest, IncrementalAlterConfigsRequest, ListOffsetsRequest, ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;
use madsim::runtime::{Handle, NodeHandle, Runtime};
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const TOPIC: &str = "page-cache";
const BROKER: &str = "10.0.0.1:9092";
/// How long anything may take to come back.
const PATIENCE: usize = 600;
/// `flush.messages` when it is off.
const NEVER: u64 = i64::MAX as u64;

/// What became of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the log, as far as the producer was told.
    pub appended: u64,
    /// Acknowledged, over all lives.
    pub acknowledged: u64,
    pub lost_in_this_cut: u64,
    pub lost_in_all: u64,
    /// In the log after the last restart.
    pub recovered: u64,
}

/// Plays one game; what became of the records in the end.
pub fn play(seed: u64, flush_every: Option<u64>, front: impl Front) -> Counts {
    let runtime = Runtime::with_seed_and_config(seed, madsim::Config::default());
    runtime.block_on(async move {
        let user = Handle::current().create_node().name("player").ip(ip("10.0.0.2")).build();
        let game = async move { Game::start(seed, flush_every, front).await.play().await };
        user.spawn(game).await.expect("the game ends")
    })
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

struct Game<F> {
    front: F,
    model: Model,
    seen: Collector,
    broker: NodeHandle,
    /// Of the broker's host: another after each power cut.
    boot: Arc<Mutex<u64>>,
    up: bool,
    client: Client,
    dial: Option<u64>,
    /// Acknowledged and not lost yet: base offset and records.
    kept: Vec<(i64, u64)>,
    counts: Counts,
    batches: u64,
    seed: u64,
}

impl<F: Front> Game<F> {
    async fn start(seed: u64, dial: Option<u64>, front: F) -> Game<F> {
        // A kernel writes dirty pages back after seconds, up to half a minute.
        let options = Options { kind: Kind::Local, writeback: Span(1_000.0, 20_000.0), ..Options::default() };
        let model = Model::new(options, seed);
        let seen = Collector::watch(&model);
        let boot = Arc::new(Mutex::new(1));
        let (volume, boots) = (model.clone(), boot.clone());
        let init = move || serve(volume.clone(), *boots.lock(), seed);
        let broker = Handle::current().create_node().name("broker").ip(ip("10.0.0.1")).init(init).build();
        let address: SocketAddr = BROKER.parse().expect("an address");
        let client = Client::new("player", vec![address].into(), Duration::from_secs(5));
        let (kept, counts) = (Vec::new(), Counts::default());
        let mut game =
            Game { front, model, seen, broker, boot, up: true, client, dial, kept, counts, batches: 0, seed };
        game.create_topic().await;
        game
    }

    async fn play(mut self) -> Counts {
        self.draw("One broker, one partition, one segment.");
        loop {
            let said = match self.front.next(self.dial) {
                Err(why) => why,
                Ok(Command::Quit) => return self.counts,
                Ok(command) => self.step(command).await,
            };
            self.seen.look();
            self.draw(&said);
        }
    }

    async fn step(&mut self, command: Command) -> String {
        match command {
            Command::Wait(s) => {
                sleep(Duration::from_secs(u64::from(s))).await;
                format!("{s} s went by.")
            }
            Command::Restart if self.up => "The broker is up.".into(),
            Command::Restart => self.restart().await,
            Command::Produce(_) | Command::Cut | Command::FlushEvery(_) if !self.up => {
                "The power is off. r restarts the broker.".into()
            }
            Command::Produce(n) => self.produce(n).await,
            Command::Cut => self.cut(),
            Command::FlushEvery(dial) => self.turn(dial).await,
            Command::Quit => String::new(),
        }
    }

    async fn produce(&mut self, batches: u32) -> String {
        let mut records = 0;
        for _ in 0..batches {
            self.batches += 1;
            // Batches of unlike sizes, so that they end anywhere in a page.
            let count = 1 + (self.batches * 7 + self.seed) % 4;
            let size = 260 + (self.batches * 389 + self.seed * 131) % 700;
            let values: Vec<Bytes> =
                (0..count).map(|i| Bytes::from(vec![b'a' + i as u8; size as usize])).collect();
            let base = self.append(batch(Identity::NONE, 1_000, &values)).await;
            self.kept.push((base, count));
            records += count;
        }
        self.counts.appended += records;
        self.counts.acknowledged += records;
        format!("{batches} batches of {records} records in all were appended and acknowledged (acks=all).")
    }

    fn cut(&mut self) -> String {
        Handle::current().kill(self.broker.id());
        self.model.power_cut(1);
        self.up = false;
        *self.boot.lock() += 1;
        self.client.disconnect();
        "Power cut: what was only in the page cache is gone, but for pages that were on their way.".into()
    }

    async fn restart(&mut self) -> String {
        Handle::current().restart(self.broker.id());
        self.up = true;
        let end = self.end().await;
        let lost: u64 = self.kept.iter().filter(|(base, _)| *base >= end).map(|(_, n)| n).sum();
        self.kept.retain(|(base, _)| *base < end);
        self.counts.lost_in_this_cut = lost;
        self.counts.lost_in_all += lost;
        self.counts.recovered = end as u64;
        self.counts.appended = end as u64;
        let torn = self.has_torn();
        let how =
            if torn { " The torn batch was found by its length or CRC and does not count." } else { "" };
        format!("Recovered up to offset {end}; {lost} acknowledged records are gone.{how}")
    }

    fn has_torn(&self) -> bool {
        self.seen.with(|homes| {
            let of_topic = homes.iter().filter(|(home, _)| home.topic == TOPIC);
            of_topic.flat_map(|(_, seen)| seen.files.values()).any(|t| t.batches().any(|b| b.torn))
        })
    }

    async fn turn(&mut self, dial: Option<u64>) -> String {
        let config = AlterableConfig::default()
            .with_name(StrBytes::from_static_str("flush.messages"))
            .with_config_operation(0)
            .with_value(Some(StrBytes::from_string(dial.unwrap_or(NEVER).to_string())));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str(TOPIC))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        for _ in 0..PATIENCE {
            let answer = self.client.call(&Target::Any, version::INCREMENTAL_ALTER_CONFIGS, &request).await;
            if answer.is_ok_and(|r| r.responses.iter().all(|r| r.error_code == 0)) {
                self.dial = dial;
                return format!("Flush {}.", dial_text(dial));
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("the broker does not take a config");
    }

    async fn create_topic(&mut self) {
        let dial = CreatableTopicConfig::default()
            .with_name(StrBytes::from_static_str("flush.messages"))
            .with_value(Some(StrBytes::from_string(self.dial.unwrap_or(NEVER).to_string())));
        let topic = CreatableTopic::default()
            .with_name(topic_name(TOPIC))
            .with_num_partitions(1)
            .with_replication_factor(1)
            .with_configs(vec![dial]);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        for _ in 0..PATIENCE {
            let answer = self.client.call(&Target::Any, version::CREATE_TOPICS, &request).await;
            // 36: an earlier attempt made it.
            if answer.is_ok_and(|r| r.topics.iter().all(|t| matches!(t.error_code, 0 | 36))) {
                self.end().await;
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("the broker does not create a topic");
    }

    /// Appends one batch, with acks=all; its base offset.
    async fn append(&mut self, records: Bytes) -> i64 {
        let data = PartitionProduceData::default().with_index(0).with_records(Some(records));
        let topic = TopicProduceData::default().with_name(topic_name(TOPIC)).with_partition_data(vec![data]);
        let request =
            ProduceRequest::default().with_acks(-1).with_timeout_ms(5_000).with_topic_data(vec![topic]);
        let leader = Target::Leader(TOPIC.into(), 0);
        for _ in 0..PATIENCE {
            if let Ok(answer) = self.client.call(&leader, version::PRODUCE, &request).await {
                let row = &answer.responses[0].partition_responses[0];
                if row.error_code == 0 {
                    return row.base_offset;
                }
            }
            self.client.forget_roles();
            sleep(Duration::from_millis(100)).await;
        }
        panic!("the broker does not append");
    }

    /// The end of the log, once the partition is led.
    async fn end(&mut self) -> i64 {
        let partition = ListOffsetsPartition::default().with_partition_index(0).with_timestamp(-1);
        let topic = ListOffsetsTopic::default().with_name(topic_name(TOPIC)).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
        let leader = Target::Leader(TOPIC.into(), 0);
        for _ in 0..PATIENCE {
            if let Ok(answer) = self.client.call(&leader, version::LIST_OFFSETS, &request).await {
                let row = &answer.topics[0].partitions[0];
                if row.error_code == 0 {
                    return row.offset;
                }
            }
            self.client.forget_roles();
            sleep(Duration::from_millis(100)).await;
        }
        panic!("the partition does not come back");
    }

    fn draw(&mut self, said: &str) {
        let style = self.front.style();
        let now = madsim::time::TimeHandle::current().elapsed();
        let power = if self.up { "broker up" } else { "power off" };
        let mut lines = vec![
            format!("page cache · {:.1} s · {power} · flush {}", now.as_secs_f64(), dial_text(self.dial)),
            String::new(),
        ];
        let width = self.front.width();
        self.seen.with(|homes| {
            let seen = homes.iter().filter(|(home, _)| home.topic == TOPIC).flat_map(|(_, seen)| &seen.files);
            let logs: Vec<(&String, &Track)> =
                seen.filter(|(name, t)| name.ends_with(".log") && t.gone.is_none()).collect();
            // Older ones are sealed: nothing happens there any more.
            for (name, track) in &logs[logs.len().saturating_sub(4)..] {
                lines.extend(picture::segment(name, track, width, style));
            }
        });
        let c = &self.counts;
        lines.extend([
            picture::legend(style),
            String::new(),
            format!(
                "in the log {}   acknowledged {}   lost in this cut {}   lost in all {}   recovered {}",
                c.appended, c.acknowledged, c.lost_in_this_cut, c.lost_in_all, c.recovered
            ),
            said.to_owned(),
            KEYS.to_owned(),
        ]);
        self.front.show(&lines);
    }
}

fn dial_text(dial: Option<u64>) -> String {
    dial.map_or("never, the kernel decides".into(), |n| format!("every {n} records"))
}

/// One life of the broker; ends with its node.
async fn serve(model: Model, boot: u64, seed: u64) {
    let config = BrokerConfig { listen: "0.0.0.0:9092".into(), ..BrokerConfig::default() };
    let env = Env {
        volume: Arc::new(model.process(1)),
        clock: Arc::new(OsClock),
        entropy: Arc::new(SeededEntropy::new(SeededEntropy::new(seed ^ (boot << 32)).u64())),
        host: Arc::new(SoloHost { name: "10.0.0.1".into(), boot: format!("boot-{boot}") }),
    };
    let node =
        Node::start(env, Arc::new(config), Arc::new(Metrics::default())).await.expect("the broker starts");
    node.failed().await;
}

#[cfg(test)]
mod tests;
