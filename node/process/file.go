package process

import (
	"errors"
	"io"
	"os"
	"strings"
)

// Tail is the end of the file, at most limit bytes; empty when it cannot be read.
func Tail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	raw, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-limit), limit))
	if err != nil {
		return ""
	}
	return string(raw)
}

// LastLine is the last line of the text that is not blank.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// Append adds to a file that keeps the end of a text: one that has grown to more than twice keep bytes is cut to keep.
func Append(path string, raw []byte, keep int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil || info.Size() <= 2*keep {
		return err
	}
	if err := os.WriteFile(path+".new", []byte(Tail(path, keep)), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// LastWords are the end of an ended machine's console, and where it wrote nothing what its holder said in its log.
func LastWords(console, log, holder string, limit int64) []byte {
	text := Tail(console, limit)
	if said := Tail(log, 4<<10); text == "" && said != "" {
		text = holder + ": " + said
	}
	return []byte(text)
}
