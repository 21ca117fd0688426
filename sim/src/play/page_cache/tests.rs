use super::*;
use crate::play::Plain;
use std::io::{Cursor, Write};

/// What a front prints, to be read afterwards.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn game(seed: u64, flush_every: Option<u64>, commands: &str) -> (Counts, String) {
    let printed = Printed::default();
    let front = Plain::new(Cursor::new(commands.to_owned()), printed.clone());
    let counts = play(seed, flush_every, front);
    let text = String::from_utf8(printed.0.lock().clone()).unwrap();
    (counts, text)
}

const CUTS: &str = "p 8\nw 2\np 5\nc\nr\np 6\nw 5\np 3\nc\nr\np 4\nc\nr\nq\n";

#[test]
fn with_a_flush_for_every_record_no_power_cut_takes_anything() {
    for seed in 1..6 {
        let (counts, text) = game(seed, Some(1), CUTS);
        assert_eq!(counts.lost_in_all, 0, "{text}");
        assert!(counts.acknowledged > 30 && counts.recovered == counts.acknowledged, "{counts:?}");
        assert!(!text.contains("gone is"), "{text}");
    }
}

#[test]
fn with_the_dial_off_acknowledged_records_disappear_and_the_log_stays_readable() {
    for seed in 1..6 {
        let (counts, text) = game(seed, None, CUTS);
        assert!(counts.lost_in_all > 0, "{text}");
        assert_eq!(counts.recovered + counts.lost_in_all, counts.acknowledged, "{text}");
        assert!(text.contains('~'), "bytes in the page cache are drawn\n{text}");
        assert!(text.contains('.'), "and lost ones\n{text}");
        assert!(!text.contains('\x1b'), "no control codes");
    }
}

#[test]
fn some_cut_ends_in_the_middle_of_a_batch_and_recovery_finds_it() {
    let torn = (1..30).find_map(|seed| {
        let (counts, text) = game(seed, None, CUTS);
        text.contains("then a torn one").then_some((counts, text))
    });
    let (counts, text) = torn.expect("one cut in many leaves a torn batch");
    assert_eq!(counts.recovered + counts.lost_in_all, counts.acknowledged, "{text}");
    assert!(text.contains('x'), "{text}");
}

#[test]
fn turning_the_dial_to_one_ends_the_losses() {
    let (counts, text) = game(3, None, "p 6\nc\nr\nf 1\np 6\nc\nr\np\nc\nr\n");
    assert!(text.contains("Flush every 1 records."));
    let at = |n: usize| text.match_indices("lost in this cut").nth(n).map(|(i, _)| i);
    assert!(at(0).is_some());
    assert_eq!(counts.lost_in_this_cut, 0, "{text}");
    assert!(counts.lost_in_all > 0, "{text}");
}

#[test]
fn what_is_no_command_says_so_and_the_game_goes_on() {
    let (counts, text) = game(1, None, "hello\nc\np\nr\np\nq\n");
    assert!(text.contains("\"hello\" is no command"));
    assert!(text.contains("The power is off"), "{text}");
    assert_eq!(counts.acknowledged, counts.appended);
}
