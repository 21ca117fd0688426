//! Delta debugging: the smallest part of a list that still fails (Zeller and Hildebrandt, "Simplifying and
//! Isolating Failure-Inducing Input", 2002).

use super::Trial;
use crate::scenario::Plan;

pub fn faults(plan: Plan, trial: &mut Trial) -> Plan {
    let list = plan.faults.clone();
    let with = |list: &[_]| Plan { faults: list.to_vec(), ..plan.clone() };
    let small = minimal(list, |part| trial.breaks(&with(part)));
    with(&small)
}

pub fn clients(plan: Plan, trial: &mut Trial) -> Plan {
    let list = plan.clients.clone();
    let with = |list: &[_]| Plan { clients: list.to_vec(), ..plan.clone() };
    let small = minimal(list, |part| trial.breaks(&with(part)));
    with(&small)
}

/// A part of `list` that fails and of which no single item can be left out.
fn minimal<T: Clone>(mut list: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    if list.is_empty() || fails(&[]) {
        return vec![];
    }
    let mut parts = 2;
    while list.len() >= 2 {
        let size = list.len().div_ceil(parts);
        let without = (0..list.len()).step_by(size).find_map(|from| {
            let rest: Vec<T> = list
                .iter()
                .enumerate()
                .filter(|(i, _)| !(from..from + size).contains(i))
                .map(|(_, t)| t.clone())
                .collect();
            fails(&rest).then_some(rest)
        });
        match without {
            Some(rest) => {
                list = rest;
                parts = (parts - 1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(list.len()),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::minimal;

    #[test]
    fn what_matters_stays_and_nothing_else() {
        let needed = [3, 17, 18];
        let mut asked = 0;
        let left = minimal((0..40).collect(), |part| {
            asked += 1;
            needed.iter().all(|n| part.contains(n))
        });
        assert_eq!(left, needed);
        assert!(asked < 120, "{asked} tries");
    }

    #[test]
    fn a_failure_that_needs_nothing_leaves_nothing() {
        assert_eq!(minimal(vec![1, 2, 3], |_| true), Vec::<i32>::new());
        assert_eq!(minimal(vec![1], |part| part == [1]), [1]);
    }
}
