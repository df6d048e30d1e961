// Package guest is what a host and the agent inside a guest say to each other, both ends of it: the framing, the
// messages, the host's Client and the guest's Server.
//
// They speak over one byte stream, such as the virtio-serial port named PortName. Each message is one frame:
//
//	0x1E  length (8 hex digits)  CRC-32 of the payload (8 hex digits)  payload (JSON)  '\n'
//
// JSON never holds the byte 0x1E, so that byte always begins a frame. Either end may die in the middle of one and
// come back: whatever half frame is left in the stream is dropped when the next frame begins, without a timer and
// without ever waiting for bytes that will not come.
//
// The host asks and the guest answers, by id and in any order. Host drivers import the package for the Client and
// cmd/fluxvm-guest for the Server. It refuses to know how a stream comes about, what a machine is, or the words of
// the HTTP API.
package guest
