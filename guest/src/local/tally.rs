//! Voices of advisors, what they come to, and what is reported of those that gave none.

use informant_wire::event::{AdvisorFailed, EventKind};
use informant_wire::limits::{MAX_PEER_NAME, MAX_SCALE_TEXT};
use informant_wire::scale::{AdvisorFault, DownscaleReason};

/// An advisor's line for people.
pub type Text = heapless::String<MAX_SCALE_TEXT>;
/// An advisor's name for people.
pub type Name = heapless::String<MAX_PEER_NAME>;

/// The same fault of the same advisor is an event once in this time.
const EVENT_EVERY_US: u64 = 60_000_000;
/// Faults whose time is kept; with more the oldest is forgotten.
const FAULTS: usize = 32;

/// What one advisor says to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Voice {
    /// It may be done.
    For,
    /// It would harm.
    Against(Text),
    /// It has no voice: this is wrong with it.
    Failed(AdvisorFault),
}

/// What the advisors say together. Whoever is silent or crashes is no voice against: else one broken script would keep
/// a VM large for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The first that was against, and its line.
    pub against: Option<(DownscaleReason, Text)>,
    /// How many did not answer in time.
    pub silent: u8,
    /// How many ended without an answer.
    pub crashed: u8,
}

impl Verdict {
    pub(crate) fn add(&mut self, voice: Voice) {
        match voice {
            Voice::For => {}
            Voice::Against(text) => {
                self.against.get_or_insert((DownscaleReason::ADVISOR, text));
            }
            Voice::Failed(AdvisorFault::SILENT) => self.silent = self.silent.saturating_add(1),
            Voice::Failed(AdvisorFault::CRASHED) => self.crashed = self.crashed.saturating_add(1),
            // Never asked.
            Voice::Failed(_) => {}
        }
    }
}

/// Reports what is wrong with advisors: a log line each time (the log has its own limit), an event now and then.
#[derive(Debug, Default)]
pub struct Complaints(heapless::Vec<(AdvisorFault, Name, u64), FAULTS>);

impl Complaints {
    /// `append` takes the event; true when there was one.
    pub fn tell(
        &mut self,
        what: AdvisorFault,
        name: &str,
        now_us: u64,
        append: &mut dyn FnMut(EventKind, &[u8]),
    ) -> bool {
        tracing::warn!("advisor '{name}': {}", what.name().unwrap_or_default());
        self.0.retain(|(.., told_us)| now_us.saturating_sub(*told_us) < EVENT_EVERY_US);
        if self.0.iter().any(|(known, of, _)| *known == what && of == name) {
            return false;
        }
        if self.0.is_full() {
            self.0.remove(0);
        }
        // There is room, and names fit: both were made so.
        let _ = self.0.push((what, Name::try_from(name).unwrap_or_default(), now_us));
        let mut body = [0; MAX_PEER_NAME + 8];
        let Ok(body) = postcard::to_slice(&AdvisorFailed { what, name }, &mut body) else { return false };
        append(EventKind::ADVISOR_FAILED, body);
        true
    }
}

/// The first line of what was said, without what would do something to a terminal, cut where `N` bytes are full.
#[must_use]
pub fn line<const N: usize>(bytes: &[u8]) -> heapless::String<N> {
    let mut text = heapless::String::new();
    each_letter(bytes, &mut |letter| text.push(letter).is_ok());
    text
}

fn each_letter(bytes: &[u8], take: &mut dyn FnMut(char) -> bool) {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    for chunk in first.trim_ascii().utf8_chunks() {
        let odd = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        for letter in chunk.valid().chars().map(|c| if c.is_control() { ' ' } else { c }).chain(odd) {
            if !take(letter) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_against_is_enough_and_who_fails_decides_nothing() {
        let mut verdict = Verdict::default();
        for voice in [
            Voice::Failed(AdvisorFault::SILENT),
            Voice::For,
            Voice::Failed(AdvisorFault::CRASHED),
            Voice::Failed(AdvisorFault::REFUSED),
            Voice::Failed(AdvisorFault::CRASHED),
        ] {
            verdict.add(voice);
        }
        assert_eq!(verdict, Verdict { against: None, silent: 1, crashed: 2 });
        verdict.add(Voice::Against(line(b"index")));
        verdict.add(Voice::Against(line(b"second")));
        assert_eq!(verdict.against, Some((DownscaleReason::ADVISOR, line(b"index"))));
    }

    #[test]
    fn a_line_does_nothing_to_a_terminal_and_is_cut_between_letters() {
        assert_eq!(line::<120>(b"  a\x1b[31m\tb\r\nsecond").as_str(), "a [31m b");
        assert_eq!(line::<120>(b"caf\xc3\xa9 \xff!").as_str(), "caf\u{e9} \u{fffd}!");
        assert_eq!(line::<4>("abc\u{e9}".as_bytes()).as_str(), "abc");
        assert_eq!(line::<4>(b"").as_str(), "");
    }

    #[test]
    fn the_same_fault_is_an_event_once_a_minute() {
        let (mut complaints, mut events) = (Complaints::default(), 0);
        let mut tell = |what, name: &str, now_us| {
            complaints.tell(what, name, now_us, &mut |kind, body| {
                assert_eq!(
                    (kind, body),
                    (EventKind::ADVISOR_FAILED, &[what.0.to_le_bytes()[0], 1, name.as_bytes()[0]][..])
                );
                events += 1;
            })
        };
        assert!(tell(AdvisorFault::SILENT, "a", 5) && tell(AdvisorFault::CRASHED, "a", 6));
        assert!(!tell(AdvisorFault::SILENT, "a", 7) && tell(AdvisorFault::SILENT, "b", 8));
        assert!(tell(AdvisorFault::SILENT, "a", 5 + EVENT_EVERY_US));
        assert_eq!(events, 4);
    }
}
