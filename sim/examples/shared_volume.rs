//! The volume model in a madsim test of one's own: two hosts, and a write that lands after its writer
//! died.
//!
//! ```text
//! cargo run --config "build.rustflags=['--cfg','madsim']" --target-dir target/sim --profile sim \
//!     -p highwater-sim --example shared_volume
//! ```
//!
//! A leader writes and dies before it syncs. Its successor, on another host, reads what is there and
//! goes on; then the dead leader's host writes its dirty page back, over the successor's bytes. What a
//! program must do about that is its own affair (here: nothing, and it loses). With the model one sees
//! that it happens, on every run of a seed that makes it happen.

#[cfg(not(madsim))]
fn main() {
    eprintln!("this example runs in the simulated build only: pass --cfg madsim, as its first comment shows");
}

#[cfg(madsim)]
fn main() {
    for seed in 1..=3 {
        let runtime = madsim::runtime::Runtime::with_seed_and_config(seed, madsim::Config::default());
        runtime.block_on(story::tell(seed));
    }
}

#[cfg(madsim)]
mod story {
    use highwater::volume::{Class, Volume, VolumeFile};
    use highwater_sim::volume::{Fault, Model, Op, Ops, Options, Process, Scope, Span};
    use std::sync::Arc;
    use std::time::Duration;

    fn now() -> f64 {
        madsim::time::TimeHandle::current().elapsed().as_secs_f64()
    }

    async fn write(file: &dyn VolumeFile, text: &'static str) {
        file.write_at(0, vec![text.into()]).await.expect("the cache takes it");
    }

    async fn read(process: &Process) -> String {
        // A fresh open, so that close-to-open holds.
        let file = process.open("journal", Class::Data).await.expect("the file is there");
        let bytes = file.read_at(0, 100).await.expect("a read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub async fn tell(seed: u64) {
        // An NFS mount whose clients write back after 5 to 30 seconds.
        let options = Options { writeback: Span(5_000.0, 30_000.0), ..Options::default() };
        let volume = Model::new(options, seed);
        volume.watch(move |e| {
            if e.op == Op::WriteBack && e.landed_after_death() {
                println!("  {:6.2} s  host {} writes {} back, its writer is dead", now(), e.host, e.path);
            }
        });

        println!("seed {seed}");
        let leader = volume.process(1);
        let file: Arc<dyn VolumeFile> = leader.create_new("journal", Class::Data).await.expect("a new name");
        write(&*file, "leader: one").await;
        file.sync().await.expect("a healthy volume");
        write(&*file, "leader: TWO").await;
        leader.kill();
        println!("  {:6.2} s  the leader dies; its host still has its second write", now());

        // The successor meets a slow server besides, for a while.
        let slow = Fault::Slow { scope: Scope::Host(2), ops: Ops::of(&[Op::Sync]), by: Span(100.0, 900.0) };
        let slow = volume.inject(slow);
        let successor = volume.process(2);
        println!("  {:6.2} s  the successor reads {:?}", now(), read(&successor).await);
        let file = successor.open_write("journal", Class::Data).await.expect("the file is there");
        write(&*file, "successor: one").await;
        file.sync().await.expect("a healthy volume");
        volume.lift(slow);
        println!("  {:6.2} s  the successor's write is durable", now());

        // A host writes back a part at a time: give it some rounds.
        tokio::time::sleep(Duration::from_secs(300)).await;
        // As a fresh client sees it: the server may not have committed yet what nobody asked it to commit.
        let shown = volume.shown().bytes("journal").expect("it is there");
        println!("  {:6.2} s  a fresh client reads {:?}", now(), String::from_utf8_lossy(&shown));
        assert_eq!(shown, "leader: TWOone", "the dead leader's bytes lie over the successor's");
    }
}
