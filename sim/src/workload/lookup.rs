//! Asks which offset belongs to a time (ListOffsets, KIP-79, KIP-734).

use super::consumer::{EARLIEST, LATEST};
use super::spec::Lookup;
use super::User;
use rand::Rng;
use std::time::Duration;

/// The offset of the largest timestamp.
const MAX_TIMESTAMP: i64 = -3;

pub(super) async fn run(mut user: User, spec: Lookup) {
    let interval = Duration::from_secs_f64(1.0 / spec.rate.draw(&mut user.rng).max(0.01));
    let began = user.wall_ms();
    while !user.is_over() {
        user.pause(interval).await;
        let lines = user.partitions(&spec.topics);
        let Some(line) = user.pick(&lines) else { continue };
        if spec.ends > 0.0 && user.rng.gen_bool(spec.ends.min(1.0)) {
            let end = if user.rng.gen_bool(0.8) { LATEST } else { EARLIEST };
            user.list_offset(&line, end).await.ok();
            continue;
        }
        // A little before the beginning and a little past the end are asked for, too.
        let timestamp = match user.rng.gen_range(0..10) {
            0 => MAX_TIMESTAMP,
            _ => {
                let until = user.wall_ms() + 1000;
                user.rng.gen_range(began - 1000..=until)
            }
        };
        user.list_offset(&line, timestamp).await.ok();
    }
}
