//! P10: reopening reads what lies past the recovery checkpoint, and after a clean close nothing of the log. It may read that
//! twice: once to find where the log ends, and once, up to there, for the sequences of idempotent producers.
//! Group slots are left out: their log is their state.

use super::{ledger::Ledger, Verdict};

/// What may be read beside: the batch around the checkpoint, what lies in the reader's first window.
const CONSTANT: u64 = 1 << 20;

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    // A slot of groups is its log: whoever serves it has to read it.
    let partitions = ledger.evidence.openings.iter().filter(|o| !o.dir.starts_with("__cluster/"));
    for opening in partitions {
        let bound = match opening.after_clean_close {
            true => 0,
            false => 2 * opening.past_checkpoint + ledger.terms.group_bytes + CONSTANT,
        };
        if opening.log_bytes_read > bound {
            let after = if opening.after_clean_close { "a clean close" } else { "a crash" };
            let what = format!(
                "{}: opening it after {after} read {} bytes of log, {bound} at most are allowed",
                opening.dir, opening.log_bytes_read
            );
            verdict.broken("P10", opening.at, what, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{bed::Story, Opening};
    use std::time::Duration;

    fn opened(after_clean_close: bool, past_checkpoint: u64, log_bytes_read: u64) -> Vec<&'static str> {
        opened_in("t/1/0", after_clean_close, past_checkpoint, log_bytes_read)
    }

    fn opened_in(
        dir: &str,
        after_clean_close: bool,
        past_checkpoint: u64,
        log_bytes_read: u64,
    ) -> Vec<&'static str> {
        let mut story = Story::new();
        let (at, dir) = (Duration::ZERO, dir.into());
        story.evidence.openings =
            vec![Opening { at, dir, after_clean_close, past_checkpoint, log_bytes_read }];
        story.broken()
    }

    #[test]
    fn after_a_clean_close_nothing_is_read() {
        assert!(opened(true, 0, 0).is_empty());
        assert_eq!(opened(true, 0, 1), ["P10"]);
    }

    #[test]
    fn a_slot_of_groups_is_read_whole() {
        assert!(opened_in("__cluster/groups/3", true, 0, 100).is_empty());
    }

    #[test]
    fn after_a_crash_what_lies_past_the_checkpoint_is_read() {
        assert!(opened(false, 10 << 20, 12 << 20).is_empty());
        assert!(opened(false, 10 << 20, 21 << 20).is_empty());
        assert_eq!(opened(false, 10 << 20, 26 << 20), ["P10"]);
    }
}
