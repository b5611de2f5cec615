# frozen_string_literal: true

module Tracepoint
  module Agent
    # Handles two effects of Ractors on hooks of the main Ractor. Both also affect
    # TracePoint and ObjectSpace.trace_object_allocations.
    #
    # Ruby 3.0 to 3.2 crash if a Ractor starts while garbage collections or new objects are
    # hooked: its first objects are created before it has a frame. There such hooks are
    # removed before a Ractor is created, and not installed if there are any.
    #
    # When a Ractor is collected (ractor_free; rb_hook_list_free in vm_trace.c), Ruby forgets
    # the events of all hooks. The hooks are silent until a hook is added or removed.
    module Ractors
      FRAGILE = RUBY_VERSION >= "3.0" && RUBY_VERSION < "3.3"
      PERIOD = RUBY_VERSION >= "3.0" ? 0.05 : nil
      @watch = nil

      module_function

      # Remove such hooks when a Ractor is created, until `unwatch`.
      #
      # @return [Boolean] whether they can be installed at all
      def watch
        return true unless FRAGILE

        unwatch
        Native.inner(true)
        @watch = TracePoint.new(:call) { Native.inner(false) }
        @watch.enable(target: Ractor.method(:new))
        Native.inner(false) if Facts.ractors > 1
        Facts.ractors == 1
      end

      # Run every PERIOD seconds while armed: silent hooks work again, and the gap is
      # reported. `beat` is a call, and allocates an object.
      def renew
        before = Native.beats
        beat
        Native.renew(before)
        note_others
      end

      # Hooks belong to the main Ractor: activity of other Ractors is not traced.
      def note_others
        Native.others if Facts.ractors > 1
      end

      def beat
        Object.new
      end

      def unwatch
        @watch&.disable
        @watch = nil
      end
    end
  end
end
