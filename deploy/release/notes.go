package main

import (
	"fmt"
	"os"
	"strings"
)

// notesOf is the text of a version's section in a file of the format Keep a Changelog.
func notesOf(changelog, version string) (string, error) {
	content, err := os.ReadFile(changelog)
	if err != nil {
		return "", err
	}
	var notes strings.Builder
	within := false
	for line := range strings.Lines(string(content)) {
		switch {
		case strings.HasPrefix(line, "## "):
			within = strings.HasPrefix(line, "## ["+strings.TrimPrefix(version, "v")+"]")
		case within:
			notes.WriteString(line)
		}
	}
	text := strings.TrimSpace(notes.String())
	if text == "" {
		return "", fmt.Errorf("%s has no text below a heading \"## [%s]\": rename [Unreleased] to it, with the date", changelog, strings.TrimPrefix(version, "v"))
	}
	return text + "\n", nil
}
