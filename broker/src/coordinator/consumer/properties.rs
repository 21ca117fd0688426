//! Random histories: whatever members, topics and coordinators do, no partition is with two members at once, no
//! epoch goes back, and once members behave everything is assigned.

use super::stories::limits;
use super::*;
use crate::coordinator::durable::Place;
use crate::coordinator::group::Out;
use proptest::prelude::*;

const CLIENTS: usize = 4;
const TOPICS: [&str; 3] = ["a", "b", "c"];

/// A client as it is: it knows what it was told, and gives up and takes as KIP-848 has it.
#[derive(Clone, Debug, Default)]
struct Client {
    id: String,
    instance: Option<String>,
    epoch: i32,
    joined: bool,
    subscribed: BTreeSet<String>,
    assignor: Option<String>,
    /// What it consumes.
    owned: Partitions,
    /// What it was last told to have.
    goal: Partitions,
    /// Owes the coordinator word of what it has.
    owes: bool,
    /// Did not get its last answer: it asks for everything again.
    unsure: bool,
    lives: u32,
}

#[derive(Clone, Debug)]
enum Move {
    Beat {
        who: usize,
        full: bool,
        lost: bool,
    },
    /// The client works towards its goal.
    Adopt(usize),
    Subscribe(usize, BTreeSet<usize>),
    Wish(usize, Assignor),
    Leave(usize),
    /// Dies without a word, and begins anew under another id.
    Restart(usize),
    Topic(usize, i32),
    Recreate(usize),
    Delete(usize),
    Wait(u64),
    /// The coordinator is lost: the group goes on from what was persisted.
    Takeover,
}

fn any_move() -> impl Strategy<Value = Move> {
    let who = 0..CLIENTS;
    let topic = 0..TOPICS.len();
    let assignor = prop_oneof![Just(Assignor::Uniform), Just(Assignor::Range)];
    prop_oneof![
        10 => (who.clone(), any::<bool>(), proptest::bool::weighted(0.15))
            .prop_map(|(who, full, lost)| Move::Beat { who, full, lost }),
        6 => who.clone().prop_map(Move::Adopt),
        1 => (who.clone(), proptest::collection::btree_set(topic.clone(), 0..=3))
            .prop_map(|(who, set)| Move::Subscribe(who, set)),
        1 => (who.clone(), assignor).prop_map(|(who, a)| Move::Wish(who, a)),
        1 => who.clone().prop_map(Move::Leave),
        1 => who.prop_map(Move::Restart),
        1 => (topic.clone(), 1..7i32).prop_map(|(t, n)| Move::Topic(t, n)),
        1 => topic.clone().prop_map(Move::Recreate),
        1 => topic.prop_map(Move::Delete),
        2 => (1..30_000u64).prop_map(Move::Wait),
        1 => Just(Move::Takeover),
    ]
}

struct World {
    group: ConsumerGroup,
    persisted: ConsumerDoc,
    limits: ConsumerLimits,
    topics: BTreeMap<String, Topic>,
    next_topic: u128,
    now: Now,
    clients: Vec<Client>,
    epochs: (i32, i32),
}

impl World {
    fn new() -> Self {
        let client = |n: usize| Client {
            id: format!("m{n}"),
            // Two static members, two dynamic ones.
            instance: (n < 2).then(|| format!("instance-{n}")),
            subscribed: TOPICS.iter().map(|t| t.to_string()).collect(),
            ..Client::default()
        };
        let group = ConsumerGroup::after(0, None);
        let mut world = World {
            persisted: group.to_doc(),
            group,
            limits: limits(),
            topics: BTreeMap::new(),
            next_topic: 0,
            now: Now::default(),
            clients: (0..CLIENTS).map(client).collect(),
            epochs: (0, 0),
        };
        world.recreate(0, 5);
        world
    }

    fn recreate(&mut self, topic: usize, partitions: i32) {
        self.next_topic += 1;
        let id = TopicId(uuid::Uuid::from_u128(self.next_topic));
        self.topics.insert(TOPICS[topic].to_owned(), Topic { id, partitions });
    }

    fn take(&mut self, out: Out) {
        if out.persist {
            self.persisted = self.group.to_doc();
        }
        // Whoever is out of the group has lost what it had: it learns of that by its own clock, or fenced.
        for client in &mut self.clients {
            if !self.group.members.contains_key(&client.id) {
                client.owned.clear();
                client.goal.clear();
                client.joined = false;
            }
        }
        self.check();
    }

    /// What holds after every input.
    fn check(&mut self) {
        let g = &self.group;
        assert!(g.epoch >= self.epochs.0 && g.assignment_epoch >= self.epochs.1, "an epoch went back");
        assert!(g.epoch >= g.assignment_epoch);
        self.epochs = (g.epoch, g.assignment_epoch);
        // As the coordinator sees it: nobody holds what another does.
        let mut holders: BTreeMap<Place, &str> = BTreeMap::new();
        let mut wanted = Partitions::new();
        for (id, m) in &g.members {
            for place in m.assigned.iter().chain(&m.revoking) {
                assert_eq!(holders.insert(*place, id), None, "{place:?} is held twice");
            }
            for place in &m.target {
                assert!(wanted.insert(*place), "{place:?} shall go to two");
            }
            assert!(m.epoch <= g.assignment_epoch);
            assert!(m.epoch == LEAVE_STATIC || m.previous <= m.epoch);
            assert_eq!(m.revoking.is_empty(), m.revoke_until.is_none());
        }
        assert_eq!(holders.keys().copied().collect::<Partitions>(), g.held);
        // As the world sees it: nobody consumes what another does, and all of it is known to the coordinator.
        let mut consumers: BTreeMap<Place, &str> = BTreeMap::new();
        for client in &self.clients {
            for place in &client.owned {
                assert_eq!(consumers.insert(*place, &client.id), None, "{place:?} is consumed twice");
                assert_eq!(holders.get(place), Some(&client.id.as_str()), "{place:?} is consumed unknown");
            }
        }
        for (instance, id) in &g.statics {
            assert_eq!(g.members[id].profile.instance.as_ref(), Some(instance));
        }
        if !g.members.is_empty() {
            assert!(g.next_deadline().is_some());
        }
    }

    fn beat(&mut self, who: usize, full: bool, lost: bool) {
        let client = &self.clients[who];
        let joins = !client.joined;
        let full = full || joins || client.unsure;
        let epoch = if joins { 0 } else { client.epoch };
        let input = HeartbeatInput {
            member_id: client.id.clone(),
            epoch,
            instance: client.instance.clone(),
            rebalance: full.then_some(Duration::from_secs(60)),
            // What changed is said with every heartbeat here: a client's own bookkeeping is not our matter.
            subscribed: Some(client.subscribed.clone()),
            assignor: client.assignor.clone(),
            owned: (full || client.owes).then(|| client.owned.clone()),
            ..HeartbeatInput::default()
        };
        let mut out = Out::default();
        let result = self.group.heartbeat(self.now, &self.limits, &self.topics, &input, &mut out);
        assert!(result.is_ok() || !out.persist);
        let client = &mut self.clients[who];
        client.unsure = lost;
        if lost {
            // It takes nothing more on the strength of an older answer (see `reconcile`).
            client.goal.clone_from(&client.owned);
        } else {
            match result {
                Ok(reply) => {
                    assert!(reply.epoch >= client.epoch || joins, "a member's epoch went back");
                    client.epoch = reply.epoch;
                    client.joined = true;
                    client.owes = false;
                    if let Some(goal) = reply.assignment {
                        client.owes = true;
                        client.goal = goal;
                    }
                }
                Err(ConsumerError::UnreleasedInstance(_)) => {}
                Err(_) => {
                    client.joined = false;
                    client.owned.clear();
                    client.goal.clear();
                }
            }
        }
        self.take(out);
    }

    fn leave(&mut self, who: usize) {
        let client = &mut self.clients[who];
        client.owned.clear();
        client.goal.clear();
        client.joined = false;
        let epoch = if client.instance.is_some() { LEAVE_STATIC } else { LEAVE };
        let input = HeartbeatInput {
            member_id: client.id.clone(),
            epoch,
            instance: client.instance.clone(),
            ..HeartbeatInput::default()
        };
        let mut out = Out::default();
        let _ = self.group.heartbeat(self.now, &self.limits, &self.topics, &input, &mut out);
        self.take(out);
    }

    fn refresh(&mut self) {
        let mut out = Out::default();
        self.group.refresh(&self.limits, &self.topics, &mut out);
        self.take(out);
    }

    fn wait(&mut self, ms: u64) {
        self.now.boot += Duration::from_millis(ms);
        self.now.wall_ms += ms as i64;
        let mut out = Out::default();
        self.group.tick(self.now, &self.limits, &self.topics, &mut out);
        self.take(out);
        assert!(self.group.next_deadline().is_none_or(|at| at > self.now.boot), "a deadline was passed over");
    }

    fn make(&mut self, step: &Move) {
        match step {
            Move::Beat { who, full, lost } => self.beat(*who, *full, *lost),
            Move::Adopt(who) => {
                let client = &mut self.clients[*who];
                client.owned.clone_from(&client.goal);
                self.check();
            }
            Move::Subscribe(who, topics) => {
                self.clients[*who].subscribed = topics.iter().map(|t| TOPICS[*t].to_owned()).collect();
            }
            Move::Wish(who, assignor) => self.clients[*who].assignor = Some(assignor.name().to_owned()),
            Move::Leave(who) => self.leave(*who),
            Move::Restart(who) => {
                let client = &mut self.clients[*who];
                client.lives += 1;
                client.id = format!("m{who}-{}", client.lives);
                client.joined = false;
                client.owned.clear();
                client.goal.clear();
            }
            Move::Topic(topic, partitions) => {
                match self.topics.get_mut(TOPICS[*topic]) {
                    Some(t) => t.partitions = t.partitions.max(*partitions),
                    None => self.recreate(*topic, *partitions),
                }
                self.refresh();
            }
            Move::Recreate(topic) => {
                self.recreate(*topic, 3);
                self.refresh();
            }
            Move::Delete(topic) => {
                self.topics.remove(TOPICS[*topic]);
                self.refresh();
            }
            Move::Wait(ms) => self.wait(*ms),
            Move::Takeover => {
                let text = serde_json::to_string(&self.persisted).unwrap();
                assert!(text.len() <= self.persisted.rough_size());
                let doc = serde_json::from_str(&text).unwrap();
                self.group = ConsumerGroup::from_doc(&doc, &self.limits, self.now);
                assert_eq!(self.group.to_doc(), self.persisted, "what was not persisted was told");
                self.check();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// After any history, members that behave have everything among themselves within five minutes.
    #[test]
    fn no_history_gives_a_partition_to_two_or_to_nobody(
        history in proptest::collection::vec(any_move(), 0..150),
    ) {
        let mut world = World::new();
        for step in &history {
            world.make(step);
        }
        for _ in 0..60 {
            for who in 0..CLIENTS {
                world.beat(who, false, false);
                world.make(&Move::Adopt(who));
            }
            world.wait(5000);
        }
        prop_assert_eq!(world.group.state(), ConsumerState::Stable);
        let ids: BTreeSet<&String> = world.clients.iter().map(|c| &c.id).collect();
        prop_assert_eq!(ids, world.group.members.keys().collect::<BTreeSet<_>>());
        let mut consumed = 0;
        for (name, topic) in &world.topics {
            let wanted = world.clients.iter().any(|c| c.subscribed.contains(name));
            for partition in 0..topic.partitions {
                let by = world.clients.iter().filter(|c| c.owned.contains(&(topic.id, partition)));
                prop_assert_eq!(by.count(), usize::from(wanted));
                consumed += usize::from(wanted);
            }
        }
        let all: usize = world.clients.iter().map(|c| c.owned.len()).sum();
        prop_assert_eq!(all, consumed, "somebody consumes what is not there");
        prop_assert!(world.clients.iter().all(|c| c.epoch == world.group.epoch));
    }
}
