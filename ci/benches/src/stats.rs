//! Percentiles, medians and the words for sizes and times.

use std::time::Duration;

/// The value below which the share `p` (0 to 1) of the samples lies; zero if there are none.
pub fn percentile(samples: &mut [Duration], p: f64) -> Duration {
    if samples.is_empty() {
        return Duration::ZERO;
    }
    let at = ((samples.len() as f64 * p) as usize).min(samples.len() - 1);
    *samples.select_nth_unstable(at).1
}

/// The middle of several runs.
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

pub fn ms(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

pub fn secs(seconds: f64) -> String {
    format!("{seconds:.2} s")
}

pub fn mb_s(bytes_per_second: f64) -> String {
    format!("{:.0} MB/s", bytes_per_second / 1e6)
}

pub fn per_s(rate: f64, what: &str) -> String {
    format!("{rate:.0} {what}/s")
}

pub fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / (1 << 20) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_runs_lies_between_the_two_middle_ones() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_samples_that_were_taken() {
        let mut s: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut s, 0.5), Duration::from_millis(51));
        assert_eq!(percentile(&mut s, 0.99), Duration::from_millis(100));
        assert_eq!(percentile(&mut s, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&mut [], 0.5), Duration::ZERO);
    }
}
