//! Events that collecting finds, kept until the loop takes them.

use informant_wire::event::EventKind;
use informant_wire::limits::MAX_EVENT_BODY;
use serde::Serialize;

/// Events kept between two visits of the loop. More in one sample would be a storm; the metrics still tell.
const MAX_PENDING: usize = 64;

/// Events in the order in which they were found.
#[derive(Debug, Default)]
pub struct Events {
    pending: Vec<(EventKind, Box<[u8]>)>,
}

impl Events {
    /// Adds an event whose body is a structure.
    pub fn push(&mut self, kind: EventKind, body: &impl Serialize) {
        let mut buffer = [0; MAX_EVENT_BODY];
        if let Ok(body) = postcard::to_slice(body, &mut buffer) {
            self.push_bytes(kind, body);
        }
    }

    /// Adds an event whose body is plain bytes.
    pub fn push_bytes(&mut self, kind: EventKind, body: &[u8]) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push((kind, body.get(..MAX_EVENT_BODY).unwrap_or(body).into()));
        }
    }

    /// Hands all of them out.
    pub fn take(&mut self, f: &mut dyn FnMut(EventKind, &[u8])) {
        for (kind, body) in self.pending.drain(..) {
            f(kind, &body);
        }
    }
}
