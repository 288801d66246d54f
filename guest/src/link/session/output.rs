//! What a session sends: pulled when the last byte before has gone to the kernel, newest first, one frame behind the
//! other in one buffer. Knows the order and the limits of what is sent; takes it all from a [`Feed`].

use super::{End, Phase, SECOND_US, Session};
use crate::collect::Sensors;
use crate::outbox::Outbox;
use crate::scale::controllers::Registry;
use informant_wire::bits;
use informant_wire::guest_to_host::Heartbeat;
use informant_wire::host_to_guest::Bye;
use informant_wire::limits::{HEARTBEAT_EVERY_S, KEY_FRAME_EVERY, MAX_EVENT_BODY, SCHEMA_EVERY_S, max_sample_body};
use informant_wire::sample::{Base, SampleHead};
use informant_wire::schema::SchemaWriter;

/// Output buffer beyond the largest sample: a heartbeat, a goodbye, an event, one message of each kind about scaling.
const SLACK: usize = 2048;
const LEAST_OUTPUT: usize = 4096;

/// What a session takes its output from.
#[derive(Debug)]
pub struct Feed<'a> {
    /// Schema and newest row.
    pub sensors: &'a Sensors,
    /// The newest sample; `None` before the first.
    pub head: Option<SampleHead>,
    /// Events.
    pub outbox: &'a Outbox,
    /// Which hosts there are.
    pub registry: &'a Registry,
    /// `CLOCK_BOOTTIME`, microseconds.
    pub now_us: u64,
    /// `CLOCK_REALTIME`, microseconds.
    pub wall_us: u64,
    /// CPU time of the newest sample, microseconds.
    pub sample_cost_us: u32,
}

/// Bytes on their way to the kernel.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) buffer: Vec<u8>,
    pub(super) filled: usize,
    pub(super) sent: usize,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.filled
    }

    /// Room behind what is filled.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.filled..).unwrap_or_default()
    }

    /// Grows or shrinks while nothing is in it. Never called between two schemas.
    pub(super) fn resize(&mut self, bytes: usize) {
        if self.is_empty() {
            self.buffer = vec![0; bytes];
            (self.filled, self.sent) = (0, 0);
        }
    }
}

/// The schema that goes over this connection.
#[derive(Debug)]
pub(super) struct SchemaState {
    generation: u32,
    writer: SchemaWriter,
    written: usize,
    pub(super) complete: bool,
    pub(super) begun_us: u64,
}

impl Session {
    /// Encodes what is due, if everything before has gone to the kernel.
    pub fn fill(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        if !self.output.is_empty() {
            return Ok(());
        }
        (self.output.filled, self.output.sent) = (0, 0);
        self.moved_us = feed.now_us;
        match self.phase {
            Phase::Greeting => {}
            Phase::Streaming => {
                // First: somebody waits for these.
                self.output.filled = self.talk.fill(self.output.room(), feed.registry, feed.now_us);
                self.fill_schema(feed)?;
                self.fill_heartbeat(feed)?;
                self.fill_sample(feed)?;
                self.fill_events(feed)?;
            }
            Phase::Closing => {
                if let Some(written) = self.talk.fill_unregistered(self.output.room()) {
                    self.output.filled = written.map_err(|_| End::Unencodable)?;
                    return Ok(());
                }
                let Some(reason) = self.said_bye.take() else { return Err(End::Done) };
                let room = self.output.room();
                self.output.filled = Bye { reason }.encode(room).map_err(|_| End::Unencodable)?;
            }
        }
        Ok(())
    }

    fn fill_heartbeat(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        if feed.now_us < self.heartbeat_us {
            return Ok(());
        }
        let heartbeat = Heartbeat {
            boot_time_us: feed.now_us,
            wall_time_us: feed.wall_us,
            loop_lag_us: std::mem::take(&mut self.lag_us),
            sample_cost_us: feed.sample_cost_us,
        };
        // Beside a large part of a schema there may be no room: then it goes with the next output.
        if let Ok(bytes) = heartbeat.encode(self.output.room()) {
            self.output.filled += bytes;
            self.heartbeat_us = feed.now_us + HEARTBEAT_EVERY_S * SECOND_US;
        }
        Ok(())
    }

    fn fill_schema(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        let generation = feed.sensors.generation();
        if self.schema.as_ref().is_none_or(|schema| schema.generation != generation) {
            let too_soon = |schema: &SchemaState| feed.now_us < schema.begun_us + SCHEMA_EVERY_S * SECOND_US;
            if feed.head.is_none_or(|head| head.generation != generation) || self.schema.as_ref().is_some_and(too_soon)
            {
                return Ok(());
            }
            self.begin_schema(generation, feed);
        }
        let Some(schema) = self.schema.as_mut().filter(|schema| !schema.complete) else { return Ok(()) };
        let mut subjects = feed.sensors.subjects().skip(schema.written).peekable();
        while subjects.peek().is_some() {
            let room = self.output.buffer.get_mut(self.output.filled..).unwrap_or_default();
            match schema.writer.part(room, subjects.by_ref()) {
                Ok((bytes, taken)) => {
                    self.output.filled += bytes;
                    schema.written += taken;
                    // The writer has looked at one subject more than it took.
                    subjects = feed.sensors.subjects().skip(schema.written).peekable();
                }
                Err(_) if self.output.filled > 0 => return Ok(()),
                Err(_) => return Err(End::Unencodable),
            }
        }
        drop(subjects);
        if let Ok(bytes) = schema.writer.end(self.output.room()) {
            self.output.filled += bytes;
            schema.complete = true;
        }
        Ok(())
    }

    /// The one place where a session allocates.
    fn begin_schema(&mut self, generation: u32, feed: &Feed<'_>) {
        let series = feed.sensors.row().values.len();
        self.output.resize((3 + max_sample_body(series) + SLACK).max(LEAST_OUTPUT));
        self.base_values.clear();
        self.base_values.resize(series, 0);
        self.base_values.shrink_to_fit();
        self.base_present.clear();
        self.base_present.resize(bits::bytes_for(series), 0);
        self.samples = 0;
        self.schema = Some(SchemaState {
            generation,
            writer: SchemaWriter::new(generation),
            written: 0,
            complete: false,
            begun_us: feed.now_us,
        });
    }

    fn fill_sample(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        let Some(head) = feed.head.filter(|head| head.sequence > self.last_sample) else { return Ok(()) };
        let whole = |schema: &SchemaState| schema.complete && schema.generation == head.generation;
        if !self.schema.as_ref().is_some_and(whole) {
            return Ok(());
        }
        let largest = 3 + max_sample_body(self.base_values.len());
        let room = self.output.buffer.get_mut(self.output.filled..).unwrap_or_default();
        if room.len() < largest {
            // Behind the last part of a schema: the sample is the next output.
            return Ok(());
        }
        let mut base = Base { values: &mut self.base_values, present: &mut self.base_present };
        let key = self.samples.is_multiple_of(KEY_FRAME_EVERY);
        let bytes = informant_wire::sample::encode(room, head, key, feed.sensors.row(), &mut base)
            .map_err(|_| End::Unencodable)?;
        self.output.filled += bytes;
        self.samples += 1;
        self.last_sample = head.sequence;
        Ok(())
    }

    fn fill_events(&mut self, feed: &Feed<'_>) -> Result<(), End> {
        let mut body = [0; MAX_EVENT_BODY];
        while let Some(event) = feed.outbox.read(self.cursor, &mut body) {
            let Ok(bytes) = event.encode(self.output.room()) else {
                // Full: the rest follows. Nothing before it and still no room would be for ever.
                return if self.output.filled > 0 { Ok(()) } else { Err(End::Unencodable) };
            };
            self.output.filled += bytes;
            self.cursor = event.sequence + 1;
        }
        Ok(())
    }
}
