//! Random interleavings: whatever members do, and whenever, the group stays sound, and once they behave it
//! becomes stable.

use super::*;
use proptest::prelude::*;

/// A client as the group sees one: it may do anything at any time.
#[derive(Clone, Debug, Default)]
struct Client {
    id: String,
    instance: Option<String>,
    generation: i32,
    leads: bool,
    /// Has joined and did not get its assignment yet.
    unsynced: bool,
    roster: Vec<String>,
    joining: Option<Token>,
    syncing: Option<Token>,
}

#[derive(Clone, Debug)]
enum Move {
    Join(usize),
    /// As a client does that was restarted: without its member id.
    JoinAnew(usize),
    Sync(usize),
    Heartbeat(usize),
    Commit(usize),
    Leave(usize),
    Wait(u64),
    /// The coordinator is lost: the group goes on from what was persisted.
    Takeover,
}

const CLIENTS: usize = 4;

fn any_move() -> impl Strategy<Value = Move> {
    let who = 0..CLIENTS;
    prop_oneof![
        4 => who.clone().prop_map(Move::Join),
        1 => who.clone().prop_map(Move::JoinAnew),
        4 => who.clone().prop_map(Move::Sync),
        2 => who.clone().prop_map(Move::Heartbeat),
        1 => who.clone().prop_map(Move::Commit),
        1 => who.prop_map(Move::Leave),
        3 => (1..12_000u64).prop_map(Move::Wait),
        1 => Just(Move::Takeover),
    ]
}

struct World {
    group: Group,
    persisted: GroupDoc,
    limits: Limits,
    now: Now,
    clients: Vec<Client>,
    next: Token,
    open: BTreeSet<Token>,
    highest: i32,
}

impl World {
    fn new(delay_ms: u64) -> Self {
        let clients = (0..CLIENTS).map(|n| Client {
            // Two static members, two dynamic ones.
            instance: (n < 2).then(|| format!("instance-{n}")),
            generation: -1,
            ..Client::default()
        });
        World {
            group: Group::new(),
            persisted: Group::new().to_doc(),
            limits: Limits { initial_delay: Duration::from_millis(delay_ms), ..Limits::default() },
            now: Now::default(),
            clients: clients.collect(),
            next: 0,
            open: BTreeSet::new(),
            highest: 0,
        }
    }

    fn token(&mut self) -> Token {
        self.next += 1;
        self.open.insert(self.next);
        self.next
    }

    fn take(&mut self, out: Out) {
        if out.persist {
            self.persisted = self.group.to_doc();
        }
        for (token, reply) in out.replies {
            assert!(self.open.remove(&token), "token {token} is answered twice, or never asked");
            match reply {
                Reply::Join(reply) => self.joined(token, reply),
                Reply::Sync(reply) => {
                    for client in self.clients.iter_mut().filter(|c| c.syncing == Some(token)) {
                        client.syncing = None;
                        client.unsynced &= reply.error.is_some();
                    }
                }
            }
        }
        self.check();
    }

    fn joined(&mut self, token: Token, reply: JoinReply) {
        let Some(client) = self.clients.iter_mut().find(|c| c.joining == Some(token)) else { return };
        client.joining = None;
        match reply.error {
            None => {
                client.id.clone_from(&reply.member_id);
                client.generation = reply.generation;
                client.unsynced = true;
                client.leads = reply.leader == reply.member_id && !reply.skip_assignment;
                client.roster = reply.members.into_iter().map(|m| m.id).collect();
            }
            Some(ResponseError::MemberIdRequired) => client.id = reply.member_id,
            Some(_) => client.id.clear(),
        }
    }

    /// What holds after every input.
    fn check(&mut self) {
        let g = &self.group;
        assert!(g.generation >= self.highest, "the generation went back");
        self.highest = g.generation;
        assert_eq!(g.state == State::PreparingRebalance, g.gathering.is_some());
        if g.state == State::Empty {
            assert!(g.members.is_empty());
        }
        if matches!(g.state, State::Stable | State::CompletingRebalance) {
            assert!(!g.members.is_empty());
            assert!(g.leader.as_ref().is_some_and(|l| g.members.contains_key(l)), "no leader");
            assert!(g.protocol_name.is_some());
            assert!(g.members.values().all(|m| m.joining.is_none()), "a join waits for nothing");
        }
        if g.state != State::CompletingRebalance {
            assert!(g.members.values().all(|m| m.syncing.is_none()), "a sync waits for nothing");
        }
        for (instance, id) in &g.statics {
            assert_eq!(g.members[id].instance.as_ref(), Some(instance));
        }
        let waiting = g.members.values().flat_map(|m| m.joining.into_iter().chain(m.syncing));
        assert_eq!(waiting.collect::<BTreeSet<_>>(), self.open, "a request is lost");
        if g.state != State::Empty || !g.pending.is_empty() {
            assert!(g.next_deadline().is_some(), "nothing will ever move this group on: {g:?}");
        }
    }

    fn join(&mut self, who: usize) {
        let token = self.token();
        let client = &mut self.clients[who];
        client.joining = Some(token);
        client.syncing = None;
        let input = JoinInput {
            member_id: client.id.clone(),
            instance: client.instance.clone(),
            client_id: format!("client-{who}"),
            session: Duration::from_secs(10),
            rebalance: Duration::from_secs(20),
            protocol_type: "consumer".to_owned(),
            protocols: vec![("range".to_owned(), Bytes::new())],
            require_known_id: who % 2 == 1,
            may_skip_assignment: who == 0,
            fresh_id: format!("id-{token}"),
            ..JoinInput::default()
        };
        let mut out = Out::default();
        self.group.join(self.now, &self.limits, input, token, &mut out);
        self.take(out);
    }

    fn sync(&mut self, who: usize) {
        let token = self.token();
        let client = &mut self.clients[who];
        client.syncing = Some(token);
        let assignments = match client.leads {
            true => client.roster.iter().map(|id| (id.clone(), Bytes::from(id.clone()))).collect(),
            false => Vec::new(),
        };
        let input = SyncInput {
            member_id: client.id.clone(),
            instance: client.instance.clone(),
            generation: client.generation,
            assignments,
            ..SyncInput::default()
        };
        let mut out = Out::default();
        self.group.sync(self.now, input, token, &mut out);
        self.take(out);
    }

    fn caller(&self, who: usize) -> Caller {
        let client = &self.clients[who];
        Caller {
            member_id: client.id.clone(),
            instance: client.instance.clone(),
            generation: client.generation,
        }
    }

    /// P8: only a member of the present generation may commit, and only under its present id.
    fn commit(&mut self, who: usize) {
        let caller = self.caller(who);
        let before = (self.group.state, self.group.generation);
        if self.group.may_commit(self.now, &caller).is_ok() && before.0 != State::Empty {
            assert_eq!(caller.generation, before.1);
            let member = &self.group.members[&caller.member_id];
            assert_eq!(member.instance, caller.instance);
            assert_ne!(before.0, State::CompletingRebalance);
        }
        self.check();
    }

    fn wait(&mut self, ms: u64) {
        self.now.boot += Duration::from_millis(ms);
        self.now.wall_ms += ms as i64;
        let mut out = Out::default();
        self.group.tick(self.now, &self.limits, &mut out);
        self.take(out);
        assert!(self.group.next_deadline().is_none_or(|at| at > self.now.boot), "a deadline was passed over");
    }

    fn takeover(&mut self) {
        self.group = Group::from_doc(&self.persisted, self.now);
        self.open.clear();
        for client in &mut self.clients {
            client.joining = None;
            client.syncing = None;
        }
        self.check();
    }

    fn leave(&mut self, who: usize) {
        let caller = self.caller(who);
        let mut out = Out::default();
        let instance = caller.instance.as_deref();
        let result = self.group.leave(self.now, &self.limits, &caller.member_id, instance, &mut out);
        self.take(out);
        if result.is_ok() {
            self.clients[who].id.clear();
        }
    }

    fn make(&mut self, step: &Move) {
        match *step {
            Move::Join(who) => self.join(who),
            Move::JoinAnew(who) => {
                self.clients[who].id.clear();
                self.join(who);
            }
            Move::Sync(who) => self.sync(who),
            Move::Heartbeat(who) => {
                let caller = self.caller(who);
                let _ = self.group.heartbeat(self.now, &caller);
                self.check();
            }
            Move::Commit(who) => self.commit(who),
            Move::Leave(who) => self.leave(who),
            Move::Wait(ms) => self.wait(ms),
            Move::Takeover => self.takeover(),
        }
    }

    /// A client that follows the protocol: joins if it must, syncs if it may, else says that it lives.
    fn behave(&mut self, who: usize) {
        let client = &self.clients[who];
        if client.joining.is_some() || client.syncing.is_some() {
            return;
        }
        let caller = self.caller(who);
        match self.group.heartbeat(self.now, &caller) {
            Ok(()) if self.clients[who].unsynced => self.sync(who),
            Ok(()) => {}
            Err(ResponseError::UnknownMemberId) if !self.group.pending.contains_key(&caller.member_id) => {
                self.clients[who].id.clear();
                self.join(who);
            }
            Err(ResponseError::FencedInstanceId) => {
                self.clients[who].id.clear();
                self.join(who);
            }
            Err(_) => self.join(who),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// After any history, clients that follow the protocol from then on have a stable group within two minutes,
    /// with all of them and nobody else in it, and each knows its assignment.
    #[test]
    fn no_history_wedges_a_group(
        delay_ms in prop_oneof![Just(0u64), Just(3000)],
        history in proptest::collection::vec(any_move(), 0..120),
    ) {
        let mut world = World::new(delay_ms);
        for step in &history {
            world.make(step);
        }
        for _ in 0..120 {
            for who in 0..CLIENTS {
                world.behave(who);
            }
            world.wait(1000);
        }
        prop_assert_eq!(world.group.state(), State::Stable);
        let ids: BTreeSet<&String> = world.clients.iter().map(|c| &c.id).collect();
        prop_assert_eq!(ids, world.group.members().keys().collect::<BTreeSet<_>>());
        prop_assert!(world.clients.iter().all(|c| c.generation == world.group.generation()));
        prop_assert!(world.open.is_empty());
        prop_assert!(world.clients.iter().all(|c| !c.unsynced), "all have their assignment");
    }
}
